package container

import (
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
)

// createBody is what POST /containers/create is sent: https://docs.docker.com/reference/api/engine/version/v1.41/. Fields that aren't
// here have the engine's defaults, which are the safe ones.
type createBody struct {
	Image, User, WorkingDir    string
	Entrypoint, Cmd, Env       []string
	Labels                     map[string]string
	AttachStdout, AttachStderr bool
	Healthcheck                healthcheck
	StopTimeout                int // seconds
	HostConfig                 hostConfig
}

type healthcheck struct{ Test []string }

type hostConfig struct {
	AutoRemove     bool
	Privileged     bool
	ReadonlyRootfs bool
	NetworkMode    string
	IpcMode        string
	CgroupnsMode   string
	CapDrop        []string
	SecurityOpt    []string
	RestartPolicy  restartPolicy
	Memory         int64 // bytes
	MemorySwap     int64 // bytes, memory and swap together
	PidsLimit      int64
	LogConfig      logConfig
	Tmpfs          map[string]string
	Mounts         []mount
	DeviceRequests []deviceRequest

	// Read back, never set.
	CapAdd, Binds, GroupAdd []string `json:",omitempty"`
	Devices                 []any    `json:",omitempty"`
	PidMode, UTSMode        string   `json:",omitempty"`
	UsernsMode              string   `json:",omitempty"`
	Runtime                 string   `json:",omitempty"`
}

type restartPolicy struct{ Name string }

type logConfig struct{ Type string }

type mount struct {
	Type, Source, Target string
	ReadOnly             bool
	BindOptions          *bindOptions `json:",omitempty"`
}

type bindOptions struct{ Propagation string }

type deviceRequest struct {
	Driver       string
	DeviceIDs    []string
	Capabilities [][]string
}

// Labels of a container: they prove whose it is.
const (
	labelRun      = "cotenant.run"
	labelDeadline = "cotenant.deadline"
)

// body makes the request of an audited model: the audit leaves nothing that isn't here.
func (m *model) body(w wanted) createBody {
	s := m.service
	env := make([]string, 0, len(s.Environment))
	for name, value := range s.Environment {
		if value != nil {
			env = append(env, name+"="+*value)
		}
	}
	slices.Sort(env)
	d := s.Deploy.Resources.Reservations.Devices[0]
	target, options, _ := strings.Cut(s.Tmpfs[0], ":")
	ipc := s.Ipc
	if ipc == "" {
		ipc = "private"
	}
	return createBody{
		Image: s.Image, User: s.User, WorkingDir: s.WorkingDir, Entrypoint: s.Entrypoint, Cmd: s.Command, Env: env,
		Labels:       map[string]string{labelRun: w.run, labelDeadline: w.deadline.String()},
		AttachStdout: true, AttachStderr: true, Healthcheck: healthcheck{[]string{"NONE"}}, StopTimeout: 1,
		HostConfig: hostConfig{
			AutoRemove: true, ReadonlyRootfs: s.ReadOnly, NetworkMode: s.NetworkMode, IpcMode: ipc, CgroupnsMode: "private",
			// Compose's spelling with a colon is deprecated; this one all engines know, and the audit leaves no other option.
			CapDrop: s.CapDrop, SecurityOpt: []string{"no-new-privileges"}, RestartPolicy: restartPolicy{s.Restart},
			Memory: int64(s.MemLimit), MemorySwap: int64(s.MemSwapLimit), PidsLimit: s.PidsLimit, LogConfig: logConfig{s.Logging.Driver},
			Tmpfs:          map[string]string{target: tmpfsOptions(options)},
			Mounts:         []mount{{"bind", s.Volumes[0].Source, s.Volumes[0].Target, s.Volumes[0].ReadOnly, &bindOptions{"rprivate"}}},
			DeviceRequests: []deviceRequest{{d.Driver, d.IDs, [][]string{d.Capabilities}}},
		},
	}
}

// tmpfsOptions writes the size in bytes: the kernel reads some suffixes otherwise than Compose does.
func tmpfsOptions(text string) string {
	options := strings.Split(text, ",")
	for i, o := range options {
		if v, ok := strings.CutPrefix(o, "size="); ok {
			if n, err := units.RAMInBytes(v); err == nil {
				options[i] = "size=" + strconv.FormatInt(n, 10)
			}
		}
	}
	return strings.Join(options, ",")
}

// inspected is what GET /containers/{id}/json answers, as far as it is looked at.
type inspected struct {
	ID, Name, Image string
	Config          struct {
		Image, User     string
		Entrypoint, Cmd []string
		Env             []string
		Labels          map[string]string
	}
	HostConfig hostConfig
	State      struct {
		Status    string
		Running   bool
		OOMKilled bool
		ExitCode  int
		Error     string
	}
	Mounts []struct {
		Type, Source, Destination string
		RW                        bool
	}
}

// differs says in which setting the engine's container isn't what was asked for; empty where in none.
func (i inspected) differs(b createBody) string {
	h, w := i.HostConfig, b.HostConfig
	for _, c := range []struct {
		name string
		same bool
	}{
		{"Image", i.Config.Image == b.Image}, {"User", i.Config.User == b.User},
		{"Entrypoint", slices.Equal(i.Config.Entrypoint, b.Entrypoint)}, {"Cmd", slices.Equal(i.Config.Cmd, b.Cmd)},
		{"Labels", i.Config.Labels[labelRun] == b.Labels[labelRun]}, {"AutoRemove", h.AutoRemove},
		{"Env", subset(b.Env, i.Config.Env)}, {"Privileged", !h.Privileged}, {"ReadonlyRootfs", h.ReadonlyRootfs}, {"NetworkMode", h.NetworkMode == w.NetworkMode},
		{"CapDrop", slices.Equal(h.CapDrop, w.CapDrop)}, {"CapAdd", len(h.CapAdd) == 0}, {"SecurityOpt", subset(w.SecurityOpt, h.SecurityOpt)},
		{"Binds", len(h.Binds) == 0}, {"GroupAdd", len(h.GroupAdd) == 0}, {"Devices", len(h.Devices) == 0},
		{"PidMode", h.PidMode == ""}, {"UTSMode", h.UTSMode == ""}, {"UsernsMode", h.UsernsMode == ""},
		{"RestartPolicy", h.RestartPolicy.Name == "no" || h.RestartPolicy.Name == ""},
		{"Memory", h.Memory == w.Memory}, {"PidsLimit", h.PidsLimit == w.PidsLimit}, {"LogConfig", h.LogConfig == w.LogConfig},
		{"Mounts", len(i.Mounts) == 1 && i.Mounts[0].Type == "bind" && i.Mounts[0].Destination == binaryTarget && !i.Mounts[0].RW},
		{"DeviceRequests", len(h.DeviceRequests) == 1 && slices.Equal(h.DeviceRequests[0].DeviceIDs, w.DeviceRequests[0].DeviceIDs)},
	} {
		if !c.same {
			return c.name
		}
	}
	return ""
}

func subset(part, whole []string) bool {
	return !slices.ContainsFunc(part, func(s string) bool { return !slices.Contains(whole, s) })
}

// listed is an entry of GET /containers/json.
type listed struct {
	ID     string
	Names  []string
	Labels map[string]string
	State  string
}
