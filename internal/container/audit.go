package container

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/go-units"

	"cotenant/internal/observe"
)

// wanted is what a service is held against.
type wanted struct {
	uuid, run string
	command   []string
	platform  string
	images    []Image
	deadline  time.Duration // the container's
	program   Binary        // the one that must run
	binary    string        // SHA-256 of what the first volume brings in
	unread    error         // why it has none
}

// audit holds one service against the rules.
type audit struct {
	m        *model
	w        wanted
	refusals []Refusal
}

// auditModel returns every rule that the service breaks, in the rules' order, each at most once a setting.
func auditModel(m *model, w wanted) []Refusal {
	a := &audit{m: m, w: w}
	a.profile()
	a.image()
	a.gpu()
	a.environment()
	a.rights()
	a.isolation()
	a.volumes()
	a.program()
	a.bounds()
	a.unreviewed()
	order := make(map[string]int, len(rules))
	for i, r := range rules {
		order[r.ID] = i
	}
	slices.SortStableFunc(a.refusals, func(x, y Refusal) int { return order[x.Rule] - order[y.Rule] })
	return a.refusals
}

func (a *audit) refuse(rule, setting, found, hint string) {
	r := ruleOf(rule)
	if found == "" {
		found = "absent"
	}
	a.refusals = append(a.refusals, Refusal{Rule: rule, Setting: setting, Found: observe.Clip(found), Want: r.Want, Why: r.Why, Hint: hint})
}

// must refuses unless ok.
func (a *audit) must(ok bool, rule, setting, found string) {
	if !ok {
		a.refuse(rule, setting, found, "")
	}
}

func (a *audit) profile() {
	p := a.m.service.Profiles
	a.must(len(p) == 1 && p[0] == Profile, "profile", "profiles", strings.Join(p, ", "))
}

func (a *audit) image() {
	s := a.m.service
	a.must(s.Platform == a.w.platform, "platform", "platform", s.Platform)
	name, digest, ok := parseImage(s.Image)
	if !ok {
		hint := ""
		if digest != "" {
			hint = "name and digest only: a tag beside the digest isn't checked by anybody"
		}
		a.refuse("image_digest", "image", s.Image, hint)
		return
	}
	for _, i := range a.w.images {
		if i.Name == name && i.Digest == digest {
			if i.Platform != a.w.platform {
				a.refuse("image_reviewed", "image", s.Image, "reviewed for "+i.Platform+", and this program runs on "+a.w.platform)
			}
			return
		}
	}
	a.refuse("image_reviewed", "image", s.Image, hintOf(name))
}

func (a *audit) gpu() {
	s := a.m.service
	var devices []types.DeviceRequest
	if s.Deploy != nil && s.Deploy.Resources.Reservations != nil {
		devices = s.Deploy.Resources.Reservations.Devices
	}
	const setting = "deploy.resources.reservations.devices"
	if len(devices) != 1 {
		a.refuse("gpu_reservation", setting, fmt.Sprintf("%d requests", len(devices)), "")
		return
	}
	d := devices[0]
	capabilities := slices.Sorted(slices.Values(d.Capabilities))
	ok := d.Driver == "nvidia" && len(d.IDs) == 1 && d.IDs[0] == a.w.uuid && d.Count == 0 && len(d.Options) == 0 &&
		slices.Equal(capabilities, []string{"compute", "gpu", "utility"})
	a.must(ok, "gpu_reservation", setting, fmt.Sprintf("driver %q, device_ids %v, count %d, capabilities %v, options %v",
		d.Driver, d.IDs, d.Count, d.Capabilities, d.Options))
}

func (a *audit) environment() {
	env := a.m.service.Environment
	get := func(name string) string {
		if v := env[name]; v != nil {
			return *v
		}
		return ""
	}
	a.must(get("CUDA_VISIBLE_DEVICES") == a.w.uuid, "visible_devices", "environment.CUDA_VISIBLE_DEVICES", get("CUDA_VISIBLE_DEVICES"))
	a.must(get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID", "device_order", "environment.CUDA_DEVICE_ORDER", get("CUDA_DEVICE_ORDER"))
	a.must(get(runVariable) == a.w.run, "environment", "environment."+runVariable, get(runVariable))
	a.must(get(DeadlineVariable) == a.w.deadline.String(), "bounds", "environment."+DeadlineVariable, get(DeadlineVariable))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch name {
		case "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", DeadlineVariable, runVariable:
		default:
			a.refuse("environment", "environment."+name, "set", "")
		}
	}
}

// rights are those that the container has over its host.
func (a *audit) rights() {
	s := a.m.service
	a.must(!s.Privileged, "privileged", "privileged", "true")
	a.must(len(s.CapDrop) == 1 && strings.EqualFold(s.CapDrop[0], "ALL"), "capabilities", "cap_drop", strings.Join(s.CapDrop, ", "))
	a.must(len(s.CapAdd) == 0, "capabilities", "cap_add", strings.Join(s.CapAdd, ", "))
	n := 0
	for _, o := range s.SecurityOpt {
		switch o {
		case "no-new-privileges:true", "no-new-privileges=true", "no-new-privileges":
			n++
		default:
			// no-new-privileges:false is among the others.
			a.refuse("security_options", "security_opt", o, "")
		}
	}
	a.must(n > 0, "no_new_privileges", "security_opt", strings.Join(s.SecurityOpt, ", "))
	a.must(s.User == nobody, "user", "user", s.User)
	a.must(s.ReadOnly, "read_only_root", "read_only", "false")
	a.must(len(s.GroupAdd) == 0, "groups", "group_add", strings.Join(s.GroupAdd, ", "))
	a.must(len(s.Devices) == 0, "devices", "devices", fmt.Sprint(len(s.Devices)))
	a.must(len(s.DeviceCgroupRules) == 0, "devices", "device_cgroup_rules", strings.Join(s.DeviceCgroupRules, ", "))
	a.must(len(s.Gpus) == 0, "devices", "gpus", fmt.Sprint(len(s.Gpus)))
	a.must(s.Runtime == "", "devices", "runtime", s.Runtime)
}

func (a *audit) isolation() {
	s := a.m.service
	var ports []string
	for _, p := range s.Ports {
		ports = append(ports, p.Published+":"+strconv.Itoa(int(p.Target)))
	}
	a.must(len(s.Ports) == 0, "ports", "ports", strings.Join(ports, ", "))
	a.must(len(s.Expose) == 0, "ports", "expose", strings.Join(s.Expose, ", "))
	if s.NetworkMode != "none" {
		found := s.NetworkMode
		if len(s.Networks) > 0 {
			found = "networks " + strings.Join(slices.Sorted(maps.Keys(s.Networks)), ", ")
		}
		a.refuse("network", "network_mode", found, "")
	}
	a.must(s.Pid == "", "namespaces", "pid", s.Pid)
	a.must(s.Ipc == "" || s.Ipc == "private" || s.Ipc == "none", "namespaces", "ipc", s.Ipc)
	a.must(s.UserNSMode == "", "namespaces", "userns_mode", s.UserNSMode)
	a.must(s.Uts == "", "namespaces", "uts", s.Uts)
	a.must(s.Cgroup == "" || s.Cgroup == "private", "namespaces", "cgroup", s.Cgroup)
	a.must(s.CgroupParent == "", "namespaces", "cgroup_parent", s.CgroupParent)
}

// volumes checks the one bind, and that what it brings in is this program.
func (a *audit) volumes() {
	volumes := a.m.service.Volumes
	if len(volumes) != 1 {
		a.refuse("binds", "volumes", fmt.Sprintf("%d volumes", len(volumes)), "")
		return
	}
	v := volumes[0]
	plain := v.Volume == nil && v.Tmpfs == nil && v.Image == nil &&
		(v.Bind == nil || (v.Bind.Propagation == "" || v.Bind.Propagation == "rprivate" || v.Bind.Propagation == "private") && v.Bind.SELinux == "" && v.Bind.Recursive == "")
	if v.Type != types.VolumeTypeBind || v.Target != binaryTarget || !v.ReadOnly || !plain {
		found := fmt.Sprintf("type %s, source %s, target %s, read_only %v", v.Type, v.Source, v.Target, v.ReadOnly)
		if !plain {
			found += ", with options"
		}
		a.refuse("binds", "volumes[0]", found, "")
		return
	}
	want := a.w.program.SHA256
	if a.w.unread != nil {
		a.refuse("binary", "volumes[0].source", a.w.unread.Error(), "")
		return
	}
	if a.w.binary != want {
		a.refuse("binary", "volumes[0].source", v.Source+" with SHA-256 "+a.w.binary, "the running program's is "+want)
		return
	}
	if err := runnable(v.Source); err != nil {
		a.refuse("binary", "volumes[0].source", err.Error(), "")
	}
}

func (a *audit) program() {
	s := a.m.service
	a.must(slices.Equal(s.Entrypoint, []string{binaryTarget}), "entrypoint", "entrypoint", strings.Join(s.Entrypoint, " "))
	if !slices.Equal(s.Command, a.w.command) {
		a.refuse("command", "command", strings.Join(s.Command, " "), "asked for is: "+strings.Join(a.w.command, " "))
	}
	a.must(s.Restart == "no", "restart", "restart", s.Restart)
	a.must(s.Deploy == nil || s.Deploy.RestartPolicy == nil, "restart", "deploy.restart_policy", "set")
}

func (a *audit) bounds() {
	s := a.m.service
	a.must(s.MemLimit > 0 && s.MemLimit <= maxMemory, "bounds", "mem_limit", fmt.Sprintf("%d bytes, at most %d", s.MemLimit, int64(maxMemory)))
	a.must(s.MemSwapLimit == s.MemLimit, "bounds", "memswap_limit", fmt.Sprintf("%d bytes", s.MemSwapLimit))
	a.must(s.PidsLimit > 0 && s.PidsLimit <= maxPIDs, "bounds", "pids_limit", fmt.Sprintf("%d, at most %d", s.PidsLimit, maxPIDs))
	if len(s.Tmpfs) != 1 {
		a.refuse("bounds", "tmpfs", fmt.Sprintf("%d of them", len(s.Tmpfs)), "")
	} else if err := checkTmpfs(s.Tmpfs[0]); err != nil {
		a.refuse("bounds", "tmpfs", s.Tmpfs[0], err.Error())
	}
	a.must(s.Logging != nil && s.Logging.Driver == "none" && len(s.Logging.Options) == 0, "logging", "logging", fmt.Sprintf("%+v", s.Logging))
}

// checkTmpfs wants /tmp, of a bounded size, from which nothing is executed.
func checkTmpfs(text string) error {
	target, options, _ := strings.Cut(text, ":")
	if target != tmpTarget {
		return fmt.Errorf("only %s", tmpTarget)
	}
	left := map[string]bool{"noexec": true, "nosuid": true, "nodev": true}
	size := int64(0)
	for _, o := range strings.Split(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "noexec", "nosuid", "nodev":
			delete(left, key)
		case "rw":
		case "size":
			n, err := units.RAMInBytes(value)
			if err != nil || strings.HasSuffix(value, "%") {
				return fmt.Errorf("size %q", value)
			}
			size = n
		case "mode":
			if n, err := strconv.ParseUint(value, 8, 12); err != nil || n&^0o1777 != 0 {
				return fmt.Errorf("mode %q", value)
			}
		default:
			return fmt.Errorf("option %q", o)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("without %s", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	if size <= 0 || size > maxTmp {
		return fmt.Errorf("size of %d bytes: want more than 0 and at most %d", size, maxTmp)
	}
	return nil
}
