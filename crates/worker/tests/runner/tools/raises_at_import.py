raise RuntimeError("of the module")
