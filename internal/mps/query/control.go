package query

// FindControl returns the path of the MPS control program on PATH of env, or in the folders where drivers put their programs; empty
// where there is none.
func FindControl(root string, env []string) string { return findControl(Options{Root: root, Env: env}) }
