package query

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"cotenant/internal/observe"
)

const (
	controlProgram = "nvidia-cuda-mps-control"
	serverProgram  = "nvidia-cuda-mps-server"
)

// Scan returns the control daemons and the servers of MPS that /proc under root shows, by ascending pid. A client of a daemon,
// which runs the same program, is not among them.
func Scan(root string) (daemons, servers []Daemon) {
	daemons, servers = []Daemon{}, []Daemon{}
	proc := filepath.Join(root, "/proc")
	entries, err := os.ReadDir(proc)
	if err != nil {
		return daemons, servers
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		program, d := process(proc, pid)
		switch {
		case program == controlProgram && d.Mode.Daemon:
			daemons = append(daemons, d)
		case program == serverProgram:
			servers = append(servers, d)
		}
	}
	byPID := func(s []Daemon) func(i, j int) bool { return func(i, j int) bool { return s[i].PID < s[j].PID } }
	sort.Slice(daemons, byPID(daemons))
	sort.Slice(servers, byPID(servers))
	return daemons, servers
}

// process reads one process; program is empty where it isn't of MPS.
func process(proc string, pid int) (program string, d Daemon) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return "", d
	}
	args := split(line)
	name, state, ppid := stat(dir)
	if len(args) > 0 {
		program = filepath.Base(args[0])
	} else if len(name) == 15 && strings.HasPrefix(controlProgram, name) && state == "Z" {
		// A zombie has no command line, and the kernel cuts its name, the same for both programs, to 15 bytes.
		program, d.Mode.Daemon = controlProgram, true
	}
	if program != controlProgram && program != serverProgram {
		return "", d
	}
	d.PID, d.PPID, d.State, d.Arguments = pid, ppid, state, append([]string{}, args...)
	d.UID = owner(dir)
	env, err := os.ReadFile(filepath.Join(dir, "environ"))
	variables := make(map[string]string)
	for _, v := range split(env) {
		if k, val, ok := strings.Cut(v, "="); ok {
			variables[k] = val
		}
	}
	variable := func(k string) observe.Value[string] {
		if err != nil {
			return observe.None[string]("environ", 0, readReason(err))
		}
		if v, ok := variables[k]; ok {
			return observe.Got("environ", v)
		}
		return observe.None[string]("environ", 0, "not set")
	}
	d.Pipe = variable("CUDA_MPS_PIPE_DIRECTORY")
	d.Log = variable("CUDA_MPS_LOG_DIRECTORY")
	d.VisibleDevices = variable("CUDA_VISIBLE_DEVICES")
	d.ActivePercentage = variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	if len(args) > 0 {
		d.Mode = modeOf(args[1:], variables["CUDA_MPS_PROTOCOL_VERSION"])
	}
	return program, d
}

func readReason(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "permission denied"
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "not there"
	}
	return observe.Clip(err.Error())
}

func split(b []byte) []string {
	var parts []string
	for _, p := range bytes.Split(bytes.TrimRight(b, "\x00"), []byte{0}) {
		if len(p) > 0 {
			parts = append(parts, strings.ToValidUTF8(string(p), "?"))
		}
	}
	return parts
}

// stat reads name, state and parent of proc(5)'s stat file. The name may hold spaces and brackets: it ends at the last one.
func stat(dir string) (name, state string, ppid int) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", "", 0
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return "", "", 0
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) > 0 {
		state = f[0]
	}
	if len(f) > 1 {
		ppid, _ = strconv.Atoi(f[1])
	}
	return string(b[open+1 : end]), state, ppid
}

// owner reads the real user id of proc(5)'s status file.
func owner(dir string) observe.Value[int] {
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return observe.None[int]("status", 0, readReason(err))
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			if uid, err := strconv.Atoi(f[1]); err == nil {
				return observe.Got("status", uid)
			}
		}
	}
	return observe.None[int]("status", 0, "no Uid line")
}

// modeOf reads a daemon's command line, without the program's name, and its CUDA_MPS_PROTOCOL_VERSION, which wins over -p.
func modeOf(args []string, protocol string) Mode {
	m := Mode{Protocol: 2}
	set := func(v string) {
		if n, err := strconv.Atoi(v); err == nil && (n == 2 || n == 3) {
			m.Protocol = n
		}
	}
	for i, a := range args {
		switch a {
		case "-d", "-f":
			m.Daemon = true
		case "-S", "--static-partitioning":
			m.Static = true
		case "-multiuser-server", "--multiuser-server":
			m.MultiUser = true
		case "-p", "--protocol":
			if i+1 < len(args) {
				set(args[i+1])
			}
		}
		if v, ok := strings.CutPrefix(a, "--protocol="); ok {
			set(v)
		}
	}
	if protocol != "" {
		set(protocol)
	}
	return m
}
