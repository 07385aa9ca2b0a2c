package query

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"cotenant/internal/bounded"
	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// RuntimeReport is what a libcudart that was found says. None is needed by this program.
type RuntimeReport struct {
	Status      observe.Status     `json:"status"`
	Reason      string             `json:"reason,omitempty"`
	SideEffects []string           `json:"side_effects"`
	Name        string             `json:"name,omitempty"`
	Path        string             `json:"path,omitempty"`
	Version     observe.Value[int] `json:"version"` // cudaRuntimeGetVersion, such as 13020
	// Symbols maps each Runtime symbol of Green Contexts to whether the library exports it.
	Symbols map[string]bool `json:"symbols,omitempty"`
}

// runtimeSonames are tried newest first.
var runtimeSonames = []string{"libcudart.so.14", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}

// RuntimeCandidates returns the names of libcudart to try: what the loader finds, then toolkit folders, newest first.
func RuntimeCandidates(root string, env []string) []string {
	var names []string
	for _, soname := range runtimeSonames {
		names = append(names, bounded.Searched(root, env, soname)...)
	}
	for _, soname := range runtimeSonames {
		for _, pattern := range []string{"/usr/local/cuda*/lib64/", "/usr/local/cuda*/targets/*/lib/", "/usr/lib/*-linux-gnu/", "/opt/cuda/lib64/"} {
			found, err := filepath.Glob(filepath.Join(root, pattern, soname))
			if err != nil {
				continue
			}
			slices.Sort(found)
			slices.Reverse(found)
			names = append(names, found...)
		}
	}
	// The request to the child must stay small.
	return names[:min(len(names), 24)]
}

// Runtime asks libcudart for its version and symbols, in a child process that can't reach an MPS daemon.
func Runtime(ctx context.Context, o Options) RuntimeReport {
	r := RuntimeReport{SideEffects: []string{}}
	if err := dl.Available(); err != nil {
		r.Status, r.Reason = observe.BlockedByEnvironment, err.Error()
		return r
	}
	names := RuntimeCandidates(o.Root, o.env())
	if len(names) == 0 {
		r.Status, r.Reason = observe.Unavailable, "no libcudart was found"
		return r
	}
	res, err := isolated(ctx, RuntimeTask, driverRequest{names}, o.env(), o.Timeout)
	if err != nil {
		r.Status, r.Reason = observe.BlockedByEnvironment, err.Error()
		return r
	}
	var un *unopened
	for _, p := range res.Parts {
		switch p.Kind {
		case "runtime":
			_ = json.Unmarshal(p.Value, &r)
		case "unopened":
			un = new(unopened)
			_ = json.Unmarshal(p.Value, un)
		}
	}
	r.SideEffects = []string{}
	if status, reason, bad := broken(res, "libcudart"); bad {
		r.Status, r.Reason = status, reason
		return r
	}
	switch {
	case un != nil && un.Blocked != "":
		r.Status, r.Reason = observe.BlockedByEnvironment, un.Blocked
	case un != nil:
		r.Status, r.Reason = observe.Unavailable, "no libcudart was found"
		for _, a := range un.Attempts {
			if !strings.Contains(a.Error, "cannot open shared object file") {
				r.Reason = observe.Clip(a.Error)
				break
			}
		}
	default:
		r.Status = observe.SupportedProven
	}
	return r
}

// ReadRuntime is the child's task for libcudart. It calls nothing but cudaRuntimeGetVersion.
func ReadRuntime(request []byte, out *bounded.Reporter) error {
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
	r := RuntimeReport{Name: lib.Name, Path: lib.Path, Symbols: make(map[string]bool, len(runtimePresence))}
	for _, name := range runtimePresence {
		r.Symbols[name] = lib.Has(name)
	}
	out.Part("runtime", r)
	const name = "cudaRuntimeGetVersion"
	f, present := lib.Resolve(runtimeCallable)[name]
	if !present {
		r.Version = observe.None[int](name, 0, notExported)
	} else {
		out.Calling(name)
		var version int32
		code := int32(f.Call(uintptr(unsafe.Pointer(&version))))
		if r.Version = observe.Got(name, int(version)); code != 0 {
			r.Version = observe.None[int](name, code, fmt.Sprintf("cudaError %d", code))
		}
	}
	out.Part("runtime", r)
	return nil
}
