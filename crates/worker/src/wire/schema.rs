//! Schemas of parameters, made such that the asker's model of a schema takes them: it forbids keys that it does not know.
