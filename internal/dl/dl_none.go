//go:build !linux || !(amd64 || arm64) || nocuda

package dl

import "runtime"

// Available returns nil where libraries can be opened, else a *BlockedError.
func Available() error {
	if nocuda {
		return &BlockedError{"this program was built with the tag nocuda: it is static and has no loader"}
	}
	return &BlockedError{"NVIDIA's driver libraries are opened on linux/amd64 and linux/arm64 only, this is " + runtime.GOOS + "/" + runtime.GOARCH}
}

func open(string) (*Library, error) { return nil, Available() }

func (l *Library) lookup(string) Symbol { return Symbol{} }

// Call panics: no symbol can be present in this build.
func (s Symbol) Call(args ...uintptr) uintptr { panic("dl: call of an absent symbol") }
