package nvml

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

const (
	notExported = "not exported by this library"

	// nvmlInitWithFlags: succeed without a GPU. NVML_INIT_FLAG_NO_ATTACH (2) is of no use here: with it, nvmlDeviceGetCount_v2
	// says 0 (an H200, driver 580.159.04).
	flagNoGPUs = 1

	// maxDevices, maxSlots and maxProcesses bound what a library that lies about a count can make us ask.
	maxDevices   = 128
	maxSlots     = 64
	maxProcesses = 4096
)

// Session is an initialised NVML in this process. A call into it can hang with the driver: who can't afford that uses Inspect.
// NVML is thread-safe; a Session may be used by several goroutines.
type Session struct {
	fn      map[string]dl.Symbol
	calling func(string)

	Library Library
	Init    Call
}

// Open opens the first of the names that the loader accepts (Candidates where none is given) and initialises NVML. The error
// is dl's where nothing could be opened, else wraps a Return.
func Open(names ...string) (*Session, error) {
	if len(names) == 0 {
		names = Candidates("", os.Environ())
	}
	s, err := load(names, func(string) {})
	if err != nil {
		return nil, err
	}
	s.initialise()
	if s.Init.Code != 0 {
		return nil, fmt.Errorf("initialising NVML: %w", Return(s.Init.Code))
	}
	return s, nil
}

// load opens the library; calling is told of each call before it is made.
func load(names []string, calling func(string)) (*Session, error) {
	calling("dlopen")
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, err
	}
	return &Session{fn: lib.Resolve(callable), calling: calling, Library: Library{Name: lib.Name, Path: lib.Path}}, nil
}

func (s *Session) initialise() {
	try := func(name string, args ...uintptr) bool {
		f, present := s.fn[name]
		if !present {
			s.Init = Call{Name: name, Code: int32(FunctionNotFound), Symbol: notExported}
			return false
		}
		s.calling(name)
		start := time.Now()
		code := Return(f.Call(args...))
		s.Init = Call{name, int32(code), code.Name(), time.Since(start).Microseconds()}
		return code != InvalidArgument && code != NotSupported
	}
	// An old library may refuse the flags.
	if !try("nvmlInitWithFlags", flagNoGPUs) {
		try("nvmlInit_v2")
	}
}

// Close shuts NVML down. The library stays loaded.
func (s *Session) Close() error {
	f, present := s.fn["nvmlShutdown"]
	if !present {
		return nil
	}
	s.calling("nvmlShutdown")
	if code := Return(f.Call()); code != Success {
		return fmt.Errorf("shutting NVML down: %w", code)
	}
	return nil
}

// handle is an nvmlDevice_t: the library's pointer, which Go never follows.
type handle uintptr

// ask makes one call, announced, and turns its result into an observation.
func ask[T any](s *Session, name string, call func(dl.Symbol) Return, value func() T) observe.Value[T] {
	f, present := s.fn[name]
	if !present {
		return observe.None[T](name, 0, notExported)
	}
	s.calling(name)
	if code := call(f); code != Success {
		return observe.None[T](name, int32(code), code.Name())
	}
	return observe.Got(name, value())
}

// number asks for an unsigned int of a device.
func (s *Session) number(name string, h handle) observe.Value[uint32] {
	var x uint32
	return ask(s, name, func(f dl.Symbol) Return { return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&x)))) },
		func() uint32 { return x })
}

// wide asks for an unsigned long long of a device.
func (s *Session) wide(name string, h handle) observe.Value[uint64] {
	var x uint64
	return ask(s, name, func(f dl.Symbol) Return { return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&x)))) },
		func() uint64 { return x })
}

// typed asks for an unsigned int of a device, given an enumeration's value.
func (s *Session) typed(name string, h handle, kind uintptr) observe.Value[uint32] {
	var x uint32
	return ask(s, name, func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), kind, uintptr(unsafe.Pointer(&x))))
	}, func() uint32 { return x })
}

// flag asks for an nvmlEnableState_t of a device.
func (s *Session) flag(name string, h handle) observe.Value[bool] {
	return convert(s.number(name, h), func(x uint32) bool { return x != 0 })
}

// flags asks for two nvmlEnableState_t at once: the current and the pending one.
func (s *Session) flags(name string, h handle) (current, pending observe.Value[bool]) {
	var c, p uint32
	v := ask(s, name, func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&c)), uintptr(unsafe.Pointer(&p))))
	}, func() bool { return c != 0 })
	return v, convert(v, func(bool) bool { return p != 0 })
}

// text asks for a string of a device.
func (s *Session) text(name string, h handle) observe.Value[string] {
	var buf [128]byte
	return ask(s, name, func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&buf)), uintptr(len(buf))))
	}, func() string { return clean(buf[:]) })
}

func (s *Session) systemText(name string) observe.Value[string] {
	var buf [128]byte
	return ask(s, name, func(f dl.Symbol) Return { return Return(f.Call(uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)))) },
		func() string { return clean(buf[:]) })
}

func clean(buf []byte) string { return strings.ToValidUTF8(dl.GoString(buf), "?") }

// named asks for an enumeration's value and gives it its name, or "unknown (n)".
func (s *Session) named(name string, h handle, names []string) observe.Value[string] {
	return convert(s.number(name, h), func(x uint32) string { return nameOf(x, names) })
}

func nameOf(x uint32, names []string) string {
	if int64(x) < int64(len(names)) && names[x] != "" {
		return names[x]
	}
	return fmt.Sprintf("unknown (%d)", x)
}

// convert changes a value and keeps the reason of an absent one.
func convert[T, U any](v observe.Value[T], f func(T) U) observe.Value[U] {
	if x, ok := v.Get(); ok {
		return observe.Got(v.Call, f(x))
	}
	return observe.None[U](v.Call, v.Code, v.Reason)
}
