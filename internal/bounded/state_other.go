//go:build !linux

package bounded

func processState(int) string { return "" }
