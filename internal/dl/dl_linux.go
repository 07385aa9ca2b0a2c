//go:build linux && (amd64 || arm64) && !nocuda

package dl

import (
	"errors"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Available returns nil where libraries can be opened, else a *BlockedError.
func Available() error { return nil }

// open binds every symbol at once (RTLD_NOW), so that a library with a missing dependency fails here and not in a call,
// and keeps its symbols to itself (RTLD_LOCAL).
func open(name string) (*Library, error) {
	// dlerror(3) is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		if err.Error() == "" {
			err = errors.New("the loader gave no reason")
		}
		return nil, err
	}
	l := &Library{Name: name, handle: h}
	l.Path = l.origin()
	return l, nil
}

func (l *Library) lookup(name string) Symbol {
	if l == nil || l.handle == 0 {
		return Symbol{}
	}
	addr, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return Symbol{}
	}
	return Symbol{addr}
}

// Call calls the function with integer and pointer arguments, at most 32, and returns the first result register: convert it
// to the width that the C function declares. Pointers are passed as uintptr(unsafe.Pointer(&x)) in the argument list itself;
// they are kept alive and in place for the call. Floating-point parameters can't be passed. Calling an absent symbol panics.
//
//go:uintptrescapes
func (s Symbol) Call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(s.addr, args...)
	return r
}

// origin asks dlinfo(3) for the file that the loader mapped.
func (l *Library) origin() string {
	const rtldDILinkmap = 2 // RTLD_DI_LINKMAP in glibc's dlfcn.h
	addr, err := purego.Dlsym(purego.RTLD_DEFAULT, "dlinfo")
	if err != nil || addr == 0 {
		return ""
	}
	// struct link_map of link.h starts with l_addr, then l_name.
	type linkMap struct {
		_    uintptr
		name *byte
	}
	var m *linkMap
	if r := (Symbol{addr}).Call(l.handle, rtldDILinkmap, uintptr(unsafe.Pointer(&m))); int32(r) != 0 || m == nil || m.name == nil {
		return ""
	}
	var name []byte
	for p := unsafe.Pointer(m.name); len(name) < 4096 && *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		name = append(name, *(*byte)(p))
	}
	path := string(name)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}
