//! The launcher. Started by the engine with its control socket as standard input.

fn main() {
    init::launcher::main()
}
