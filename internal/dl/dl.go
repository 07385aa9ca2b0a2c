// Package dl opens shared libraries and calls functions in them. It alone imports purego. An absent library or an absent
// symbol is a value that the caller reports, never a panic.
//
// Libraries can be opened on linux/amd64 and linux/arm64, in a build without the tag nocuda; elsewhere Open returns a
// *BlockedError. A build that can open libraries is linked dynamically, even with CGO_ENABLED=0: it needs glibc's loader.
// With the tag nocuda the program is static.
package dl

import (
	"bytes"
	"fmt"
	"strings"
)

// BlockedError says that this build, or this platform, can't open shared libraries at all.
type BlockedError struct{ Reason string }

func (e *BlockedError) Error() string { return "shared libraries can't be opened: " + e.Reason }

// Attempt is one name that was tried and what the loader said of it.
type Attempt struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// OpenError says that none of the names could be opened.
type OpenError struct{ Attempts []Attempt }

func (e *OpenError) Error() string {
	said := make([]string, len(e.Attempts))
	for i, a := range e.Attempts {
		said[i] = a.Error
		if !strings.Contains(a.Error, a.Name) {
			said[i] = a.Name + ": " + a.Error
		}
	}
	return "opening a shared library: " + strings.Join(said, "; ")
}

// Library is an open shared library. It stays open until the process ends: driver libraries start threads of their own,
// so closing one is not safe.
type Library struct {
	// Name is the name that opened it, out of those asked for.
	Name string
	// Path is where the loader found it, symbolic links resolved; empty where the loader doesn't tell.
	Path string

	handle uintptr
}

// Symbol is the address of a function in a library. The zero Symbol is an absent function.
type Symbol struct{ addr uintptr }

// Present reports whether the function exists.
func (s Symbol) Present() bool { return s.addr != 0 }

// Has reports whether the library exports the name, and gives no way to call it. Presence proves nothing about whether a
// call works: a shim or an interposed library can export what it doesn't do.
func (l *Library) Has(name string) bool { return l.Symbol(name).Present() }

// Resolve looks up every name and returns those that exist.
func (l *Library) Resolve(names []string) map[string]Symbol {
	found := make(map[string]Symbol, len(names))
	for _, name := range names {
		if s := l.Symbol(name); s.Present() {
			found[name] = s
		}
	}
	return found
}

// Symbol looks up exactly this name. The C headers rename many functions by macro (cuMemAlloc is cuMemAlloc_v2 in the
// library): the caller asks for the exported name whose signature it declares. An absent symbol is the zero Symbol.
func (l *Library) Symbol(name string) Symbol {
	if strings.IndexByte(name, 0) >= 0 {
		return Symbol{}
	}
	return l.lookup(name)
}

// GoString returns the text in buf up to its first NUL, or all of buf where there is none.
func GoString(buf []byte) string {
	if i := bytes.IndexByte(buf, 0); i >= 0 {
		buf = buf[:i]
	}
	return string(buf)
}

// Open opens the first of the names that the loader accepts. A name without a slash is searched as dlopen(3) does. The
// error is a *BlockedError or an *OpenError.
func Open(names ...string) (*Library, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("opening a shared library: no name given")
	}
	var failed []Attempt
	for _, name := range names {
		if strings.IndexByte(name, 0) >= 0 || name == "" {
			failed = append(failed, Attempt{name, "not a file name"})
			continue
		}
		l, err := open(name)
		if err == nil {
			return l, nil
		}
		failed = append(failed, Attempt{name, err.Error()})
	}
	return nil, &OpenError{failed}
}
