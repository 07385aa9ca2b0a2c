package soak

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"cotenant/internal/ledger"
)

// BuildInfo describes the running program for a ledger: its version control state where the build stamped it, and the hash of its
// file.
func BuildInfo(version string) ledger.Build {
	b := ledger.Build{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: int64(runtime.NumCPU())}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Dirty = s.Value == "true"
			}
		}
	}
	if path, err := os.Executable(); err == nil {
		if f, err := os.Open(path); err == nil {
			defer f.Close()
			h := sha256.New()
			if _, err := io.Copy(h, f); err == nil {
				b.BinarySHA256 = hex.EncodeToString(h.Sum(nil))
			}
		}
	}
	return b
}
