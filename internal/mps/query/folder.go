package query

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cotenant/internal/observe"
)

const (
	socketName = "control"
	pidName    = controlProgram + ".pid"

	// maxSocketPath is the size of sun_path of unix(7), its final NUL among them.
	maxSocketPath = 108
)

// folders looks at the pipe folders that someone may use: the one of our environment, the defaults of protocols 2 and 3, those of
// running daemons, and those of the Kubernetes device plugin. It only stats and reads pid files.
func folders(root string, env []string, daemons []Daemon) []Folder {
	found := []Folder{}
	seen := make(map[string]bool)
	add := func(path, why string) {
		path = filepath.Clean(path)
		if path == "." || seen[path] || !filepath.IsAbs(path) {
			return
		}
		seen[path] = true
		found = append(found, lookAt(root, path, why, daemons))
	}
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "CUDA_MPS_PIPE_DIRECTORY="); ok {
			add(v, "environment")
		}
	}
	add("/tmp/nvidia-mps", "default")
	add("/run/nvidia-mps", "default")
	for _, d := range daemons {
		if p, ok := d.Pipe.Get(); ok {
			add(p, "process")
		}
	}
	// The device plugin keeps a folder a resource, such as nvidia.com/gpu, on the node and mounts it below /mps in pods.
	for _, parent := range []string{"/run/nvidia/mps", "/mps"} {
		for _, pattern := range []string{"*/pipe", "*/*/pipe"} {
			plugin, _ := filepath.Glob(filepath.Join(root, parent, pattern))
			for _, p := range plugin {
				add(strings.TrimPrefix(p, root), "kubernetes")
			}
		}
	}
	return found
}

func lookAt(root, path, why string, daemons []Daemon) Folder {
	f := Folder{Path: path, Why: why, TooLong: len(path)+1+len(socketName)+1 > maxSocketPath, PIDState: PIDAbsent}
	f.PID = observe.None[int]("", 0, "no pid file")
	f.Owner = observe.None[int]("", 0, "no such folder")
	dir := filepath.Join(root, path)
	info, err := os.Stat(dir)
	if err != nil {
		f.Denied = os.IsPermission(err)
		return f
	}
	f.Exists, f.Mode = true, info.Mode().String()
	f.Owner = fileOwner(info)
	_, err = os.Stat(filepath.Join(dir, socketName))
	f.Socket = err == nil
	if os.IsPermission(err) {
		f.Denied = true
	}
	text, err := os.ReadFile(filepath.Join(dir, pidName))
	switch {
	case os.IsPermission(err):
		f.PIDState = PIDUnreadable
		f.PID = observe.None[int]("", 0, "permission denied")
		return f
	case err != nil:
		return f
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || pid <= 0 {
		f.PIDState = PIDMalformed
		f.PID = observe.None[int]("", 0, "not a pid: "+observe.Clip(string(text)))
		return f
	}
	f.PID = observe.Got("", int(pid))
	f.PIDState = pidState(root, path, int(pid), daemons)
	return f
}

// pidState says whether the pid of a folder's pid file is its daemon.
func pidState(root, folder string, pid int, daemons []Daemon) PIDState {
	for _, d := range daemons {
		if d.PID != pid {
			continue
		}
		if d.State == "Z" {
			return PIDZombie
		}
		if p, ok := d.Pipe.Get(); ok && filepath.Clean(p) != folder {
			return PIDElsewhere
		}
		return PIDLive
	}
	dir := filepath.Join(root, "/proc", strconv.Itoa(pid))
	if _, err := os.Stat(dir); err != nil {
		return PIDDead
	}
	if _, state, _ := stat(dir); state == "Z" {
		return PIDZombie
	}
	return PIDRecycled
}
