package inspect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/observe"
	"cotenant/internal/topology"
)

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// SMI is nvidia-smi, the second witness.
type SMI struct {
	Source
	Path string
	Rows []SMIRow
}

// SMIRow is one GPU as nvidia-smi prints it. A field that it doesn't know, or prints as N/A, is absent.
type SMIRow struct {
	Index, Name, UUID, PCI, Driver, MemoryMiB, ComputeMode, MIGCurrent, MIGPending, ComputeCapability, Display observe.Value[string]
}

// smiFields are the fields that are asked for. The name comes last, since it alone may hold a comma.
var smiFields = []string{"index", "uuid", "pci.bus_id", "driver_version", "memory.total", "compute_mode", "mig.mode.current", "mig.mode.pending",
	"compute_cap", "display_active", "name"}

var badField = regexp.MustCompile(`Field "([^"]+)" is not a valid field`)

func smi(ctx context.Context, t tree, os string, env []string, timeout time.Duration) SMI {
	s := SMI{Rows: []SMIRow{}}
	name, folders := "nvidia-smi", []string{"/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/bin", "/run/current-system/sw/bin"}
	switch os {
	case "linux":
	case "windows":
		name, folders = "nvidia-smi.exe", []string{`/Windows/System32`}
	default:
		s.end(observe.BlockedByEnvironment, "NVIDIA has no driver for "+os)
		return s
	}
	path := t.program(env, name, folders...)
	if path == "" {
		s.end(observe.Unavailable, name+" is not on PATH or in the usual folders")
		return s
	}
	s.Path = t.shown(path)
	s.SideEffects = []string{"nvidia-smi initialises NVML, which may load the kernel module and create device nodes"}
	deadline := time.Now().Add(timeout)
	fields := slices.Clone(smiFields)
	for {
		args := []string{"--query-gpu=" + strings.Join(fields, ","), "--format=csv,noheader,nounits"}
		r := bounded.Run(ctx, bounded.Command{Path: path, Args: args, Env: env, Timeout: time.Until(deadline)})
		call := "nvidia-smi " + strings.Join(args, " ")
		text := r.Text()
		s.add(returned(observe.Clip(call), int32(r.ExitCode), text))
		if status, reason := smiStatus(r, text); status != observe.SupportedProven {
			s.end(status, reason)
		} else {
			s.Rows = parseSMI(string(r.Stdout), fields)
			s.end(status, "")
			if len(s.Rows) == 0 {
				s.end(observe.Unknown, "nvidia-smi printed no row that could be read")
			}
		}
		// An older driver refuses the whole query for one field that it doesn't know: ask again without it.
		m := badField.FindStringSubmatch(text)
		i := -1
		if m != nil {
			i = slices.Index(fields, m[1])
		}
		if i < 0 || time.Until(deadline) <= 0 {
			return s
		}
		fields = slices.Delete(fields, i, i+1)
	}
}

// smiTexts are what nvidia-smi says where it can't answer, on stdout or stderr; the exit codes differ between versions.
var smiTexts = []struct {
	text   string
	status observe.Status
	reason string
}{
	{"driver/library version mismatch", observe.BlockedByEnvironment, "driver and library versions don't match"},
	{"couldn't communicate with the nvidia driver", observe.Unavailable, "the driver is not loaded"},
	{"couldn't find libnvidia-ml.so", observe.Unavailable, "libnvidia-ml.so is missing here"},
	{"no devices were found", observe.Unavailable, "no device was found"},
	{"insufficient permissions", observe.PermissionDenied, "insufficient permissions"},
	{"failed to initialize nvml", observe.Unavailable, "NVML could not be initialised"},
	{"is not a valid field to query", observe.BlockedByRuntimeVersion, "this version doesn't know a field that was asked for"},
}

func smiStatus(r bounded.Result, text string) (observe.Status, string) {
	switch {
	case r.Hung():
		reason := "nvidia-smi did not answer by the deadline and was given up"
		if r.State == "D" {
			reason += "; it is in uninterruptible sleep"
		}
		return observe.Hung, reason
	case r.Outcome == bounded.NotStarted:
		if errors.Is(r.Err, fs.ErrPermission) {
			return observe.PermissionDenied, "nvidia-smi may not be executed"
		}
		if errors.Is(r.Err, exec.ErrNotFound) || errors.Is(r.Err, fs.ErrNotExist) {
			return observe.Unavailable, r.Err.Error()
		}
		return observe.Unknown, r.Err.Error()
	case r.Outcome == bounded.Signaled:
		return observe.Unknown, "nvidia-smi was ended by signal " + r.Signal
	}
	low := strings.ToLower(text)
	// A row may hold such a phrase in one field; a table is judged by its rows.
	if r.ExitCode != 0 || !strings.Contains(text, ",") {
		for _, x := range smiTexts {
			if strings.Contains(low, x.text) {
				return x.status, x.reason
			}
		}
		if r.ExitCode != 0 {
			return observe.Unknown, "nvidia-smi ended with code " + strconv.Itoa(r.ExitCode)
		}
	}
	return observe.SupportedProven, ""
}

// absent are the words that nvidia-smi prints for a field without a value, with or without brackets.
var absentWords = []string{"n/a", "not supported", "unknown error", "unknown", "gpu requires reset", "gpu is lost", "insufficient permissions", "no data",
	"function not found", "err!", "requested functionality has been deprecated", "not found", ""}

// unitSuffixes are stripped: an old version prints them although it was told not to.
var unitSuffixes = []string{" MiB", " %", " W", " MHz"}

func smiValue(field, raw string) observe.Value[string] {
	raw = strings.TrimSpace(raw)
	bare := strings.ToLower(strings.TrimSpace(strings.Trim(raw, "[]")))
	if slices.Contains(absentWords, bare) {
		return observe.None[string]("nvidia-smi "+field, 0, cmp.Or(strings.ReplaceAll(bare, " ", "_"), "empty"))
	}
	for _, u := range unitSuffixes {
		raw = strings.TrimSuffix(raw, u)
	}
	return observe.Got("nvidia-smi "+field, observe.Clip(raw))
}

func parseSMI(text string, fields []string) []SMIRow {
	rows := []SMIRow{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimRight(line, "\r\n"), ",", len(fields))
		if len(f) < len(fields) {
			continue
		}
		var r SMIRow
		at := map[string]*observe.Value[string]{"index": &r.Index, "uuid": &r.UUID, "pci.bus_id": &r.PCI, "driver_version": &r.Driver,
			"memory.total": &r.MemoryMiB, "compute_mode": &r.ComputeMode, "mig.mode.current": &r.MIGCurrent, "mig.mode.pending": &r.MIGPending,
			"compute_cap": &r.ComputeCapability, "display_active": &r.Display, "name": &r.Name}
		for name, v := range at {
			*v = observe.None[string]("nvidia-smi "+name, 0, "not a field of this version")
		}
		for i, name := range fields {
			*at[name] = smiValue(name, f[i])
		}
		// A row without a UUID and a place names no GPU. A board's own GPU has no place.
		_, err := topology.ParseUUID(r.UUID.Or(""))
		if err != nil && !busForm.MatchString(r.PCI.Or("")) {
			continue
		}
		rows = append(rows, r)
	}
	return rows
}
