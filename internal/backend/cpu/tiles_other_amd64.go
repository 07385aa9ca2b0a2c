//go:build amd64 && !linux

package cpu

// allowTiles: other systems have other ways, which nobody has tried.
func allowTiles() bool { return false }
