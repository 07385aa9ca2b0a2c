package query

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"cotenant/internal/bounded"
	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// maxDevices bounds what a library that lies about its count can make us ask.
const maxDevices = 128

const notExported = "not exported by this library"

// driverRequest is what the child is asked.
type driverRequest struct {
	Names []string `json:"names"`
}

// ReadDriver is the task of the child: it opens libcuda, asks everything and reports as it goes.
func ReadDriver(request []byte, out *bounded.Reporter) error {
	var req driverRequest
	if err := json.Unmarshal(request, &req); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	out.Calling("dlopen")
	lib, err := dl.Open(req.Names...)
	if err != nil {
		out.Part("unopened", unopenedFrom(err))
		return nil
	}
	out.Part("library", describe(lib))
	symbols := make(map[string]bool, len(presence))
	for name := range presence {
		symbols[name] = lib.Has(name)
	}
	out.Part("symbols", symbols)
	d := &driver{fn: lib.Resolve(callable), out: out}
	d.read()
	return nil
}

// unopened is why no library could be opened.
type unopened struct {
	Blocked  string       `json:"blocked,omitempty"`
	Attempts []dl.Attempt `json:"attempts,omitempty"`
}

func unopenedFrom(err error) unopened {
	var blocked *dl.BlockedError
	var failed *dl.OpenError
	switch {
	case errors.As(err, &blocked):
		return unopened{Blocked: blocked.Reason}
	case errors.As(err, &failed):
		return unopened{Attempts: failed.Attempts}
	}
	return unopened{Attempts: []dl.Attempt{{Error: err.Error()}}}
}

func describe(lib *dl.Library) Library {
	l := Library{Name: lib.Name, Path: lib.Path, Preload: os.Getenv("LD_PRELOAD")}
	for _, path := range []string{lib.Name, lib.Path} {
		l.Stub = l.Stub || strings.Contains(path, "/stubs/")
		l.Compat = l.Compat || strings.Contains(path, "/compat/")
		l.WSL = l.WSL || strings.Contains(path, "/wsl/")
	}
	l.Mapped = mappedLibraries()
	return l
}

// mappedLibraries lists the files in memory that are the driver's or stand in front of it.
func mappedLibraries() []string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var found []string
	seen := make(map[string]bool)
	for line := range strings.Lines(string(maps)) {
		i := strings.IndexByte(line, '/')
		if i < 0 {
			continue
		}
		path := strings.TrimSpace(line[i:])
		base := path[strings.LastIndexByte(path, '/')+1:]
		if seen[path] || !strings.Contains(base, ".so") {
			continue
		}
		seen[path] = true
		for _, word := range []string{"cuda", "nvidia", "vgpu", "hami"} {
			if strings.Contains(base, word) {
				found = append(found, path)
				break
			}
		}
	}
	return found
}

// driver is an open libcuda of which only the allow-list can be called.
type driver struct {
	fn      map[string]dl.Symbol
	out     *bounded.Reporter
	version int
}

// initialise and count, then every device.
func (d *driver) read() {
	var version int32
	v := ask(d, "cuDriverGetVersion", func(f dl.Symbol) Code { return Code(f.Call(uintptr(unsafe.Pointer(&version)))) },
		func() int { return int(version) })
	d.version = v.Or(0)
	d.out.Part("driver_version", v)

	init, present := d.fn["cuInit"]
	if !present {
		d.out.Part("init", Call{Name: "cuInit", Code: -1, Symbol: notExported})
		return
	}
	d.out.Calling("cuInit")
	start := time.Now()
	code := Code(init.Call(0))
	d.out.Part("init", Call{"cuInit", int32(code), code.Name(), time.Since(start).Microseconds()})
	if code != Success {
		return
	}
	var n int32
	count := ask(d, "cuDeviceGetCount", func(f dl.Symbol) Code { return Code(f.Call(uintptr(unsafe.Pointer(&n)))) },
		func() int { return int(n) })
	d.out.Part("device_count", count)
	for i := 0; i < min(count.Or(0), maxDevices); i++ {
		d.out.Part("device", d.device(i))
	}
}

// ask makes one call, announced, and turns its result into an observation.
func ask[T any](d *driver, name string, call func(dl.Symbol) Code, value func() T) observe.Value[T] {
	return askAs(d, name, name, call, value)
}

// askAs is ask with a label that says more than the function's name.
func askAs[T any](d *driver, name, label string, call func(dl.Symbol) Code, value func() T) observe.Value[T] {
	f, present := d.fn[name]
	if !present {
		return observe.None[T](label, 0, notExported)
	}
	d.out.Calling(label)
	if code := call(f); code != Success {
		return observe.None[T](label, int32(code), code.Name())
	}
	return observe.Got(label, value())
}

func (d *driver) device(ordinal int) Device {
	dev := Device{Ordinal: ordinal, Attributes: make(map[string]observe.Value[int64])}
	var handle int32
	got := ask(d, "cuDeviceGet", func(f dl.Symbol) Code {
		return Code(f.Call(uintptr(unsafe.Pointer(&handle)), uintptr(ordinal)))
	}, func() int32 { return handle })
	if !got.OK() {
		dev.UUID = observe.None[string](got.Call, got.Code, got.Reason)
		return dev
	}
	h := uintptr(handle)
	dev.UUID = d.uuid(h)
	dev.Name = d.text("cuDeviceGetName", func(f dl.Symbol, buf *[256]byte) Code {
		return Code(f.Call(uintptr(unsafe.Pointer(buf)), uintptr(len(buf)), h))
	})
	dev.PCI = d.text("cuDeviceGetPCIBusId", func(f dl.Symbol, buf *[256]byte) Code {
		return Code(f.Call(uintptr(unsafe.Pointer(buf)), uintptr(len(buf)), h))
	})
	var bytes uint64
	dev.MemoryBytes = ask(d, "cuDeviceTotalMem_v2", func(f dl.Symbol) Code {
		return Code(f.Call(uintptr(unsafe.Pointer(&bytes)), h))
	}, func() uint64 { return bytes })
	d.attributes(h, &dev)
	d.resources(h, &dev)
	return dev
}

func (d *driver) text(name string, call func(dl.Symbol, *[256]byte) Code) observe.Value[string] {
	var buf [256]byte
	return ask(d, name, func(f dl.Symbol) Code { return call(f, &buf) },
		func() string { return strings.ToValidUTF8(dl.GoString(buf[:]), "?") })
}

// uuid prefers version 2 of the call, which returns a MIG instance's own UUID where version 1 returns its parent's.
func (d *driver) uuid(h uintptr) observe.Value[string] {
	name := "cuDeviceGetUuid_v2"
	if !d.fn[name].Present() {
		name = "cuDeviceGetUuid"
	}
	var b [16]byte
	return ask(d, name, func(f dl.Symbol) Code { return Code(f.Call(uintptr(unsafe.Pointer(&b)), h)) },
		func() string {
			x := hex.EncodeToString(b[:])
			return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
		})
}

func (d *driver) attributes(h uintptr, dev *Device) {
	byID := make(map[int32]observe.Value[int64])
	for _, a := range attributes {
		label := "cuDeviceGetAttribute(" + strconv.Itoa(int(a.id)) + ")"
		if d.version < a.since {
			dev.Attributes[a.name] = observe.None[int64](label, 0, "not before CUDA "+FormatVersion(a.since))
			continue
		}
		var x int32
		v := askAs(d, "cuDeviceGetAttribute", label, func(f dl.Symbol) Code {
			return Code(f.Call(uintptr(unsafe.Pointer(&x)), uintptr(a.id), h))
		}, func() int64 { return int64(x) })
		dev.Attributes[a.name], byID[a.id] = v, v
	}
	var x int32
	dev.Attributes["exec_affinity_sm_count"] = ask(d, "cuDeviceGetExecAffinitySupport", func(f dl.Symbol) Code {
		return Code(f.Call(uintptr(unsafe.Pointer(&x)), 0, h))
	}, func() int64 { return int64(x) })
	dev.SMCount = byID[attrSMCount]
	major, minor := byID[attrMajor], byID[attrMinor]
	dev.ComputeCapability = observe.None[string](major.Call, max(major.Code, minor.Code), major.Reason+minor.Reason)
	if major.OK() && minor.OK() {
		dev.ComputeCapability = observe.Got(major.Call, fmt.Sprintf("%d.%d", *major.Value, *minor.Value))
	}
}

func (d *driver) resources(h uintptr, dev *Device) {
	const name = "cuDeviceGetDevResource"
	var r resource
	get := func(kind uintptr) func(dl.Symbol) Code {
		return func(f dl.Symbol) Code {
			r = resource{}
			return Code(f.Call(h, uintptr(unsafe.Pointer(&r)), kind))
		}
	}
	dev.SM = check(&r, typeSM, askAs(d, name, name+"(SM)", get(typeSM), func() SMResource { return decodeSM(&r, d.version) }))
	if d.version < FloorWorkqueue {
		why := "not before CUDA " + FormatVersion(FloorWorkqueue)
		dev.WorkqueueConfig = observe.None[WorkqueueConfig](name+"(WORKQUEUE_CONFIG)", 0, why)
		dev.Workqueue = observe.None[Workqueue](name+"(WORKQUEUE)", 0, why)
		return
	}
	dev.WorkqueueConfig = check(&r, typeWorkqueueConfig, askAs(d, name, name+"(WORKQUEUE_CONFIG)", get(typeWorkqueueConfig),
		func() WorkqueueConfig { return decodeWorkqueueConfig(&r) }))
	dev.Workqueue = check(&r, typeWorkqueue, askAs(d, name, name+"(WORKQUEUE)", get(typeWorkqueue),
		func() Workqueue { return decodeWorkqueue(&r) }))
}

// check refuses an answer whose type field isn't the one asked for: success alone proves nothing.
func check[T any](r *resource, want uint32, v observe.Value[T]) observe.Value[T] {
	if v.OK() && r.kind() != want {
		return observe.None[T](v.Call, 0, fmt.Sprintf("success, but the resource's type is %d, not %d", r.kind(), want))
	}
	return v
}
