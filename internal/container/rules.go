package container

// Rule is one thing that the audit refuses a service for.
type Rule struct {
	ID   string `json:"id"`
	Want string `json:"want"`
	Why  string `json:"why"`
}

// Rules of the audit, in the order in which they are applied.
var rules = []Rule{
	{"profile", "profiles: [" + Profile + "]", "without a profile `docker compose up` starts the service"},
	{"image_digest", "image: NAME@sha256:…, without a tag", "a tag's content changes; a digest's can't"},
	{"image_reviewed", "an image of the reviewed table, by name and platform's manifest digest", "what else is in an image runs beside the driver, and a probe needs glibc"},
	{"platform", "platform: the program's own, such as linux/amd64", "without one the engine chooses, and the program is of one platform"},
	{"gpu_reservation", "one device of driver nvidia, by this UUID, capabilities gpu, compute, utility", "the container must see the GPU that was asked for and no other"},
	{"visible_devices", "CUDA_VISIBLE_DEVICES: this UUID", "it holds also where the engine's hook passes more devices on"},
	{"device_order", "CUDA_DEVICE_ORDER: PCI_BUS_ID", "CUDA's default order differs from every tool's"},
	{"environment", "no variables but CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, " + DeadlineVariable + " and COTENANT_PROBE_RUN", "variables change what a driver loads and does"},
	{"privileged", "privileged: false", "a privileged container has every device and can change the host"},
	{"capabilities", "cap_drop: [ALL], no cap_add", "a probe needs no capability"},
	{"no_new_privileges", "security_opt: no-new-privileges:true", "no program of the image may raise its rights"},
	{"security_options", "no other security_opt", "other options weaken seccomp, AppArmor or SELinux"},
	{"user", "user: " + nobody, "a probe needs no root"},
	{"read_only_root", "read_only: true", "nothing may be written but to the bounded /tmp"},
	{"ports", "no ports, no expose", "a probe serves nobody"},
	{"network", "network_mode: none", "a probe needs no network, and none may be made for it"},
	{"namespaces", "pid, ipc, userns_mode, uts and cgroup not the host's or another container's", "the container must not see or signal other processes"},
	{"binds", "one volume: this program, bind-mounted read-only at " + binaryTarget, "any other mount is a way out or a way in"},
	{"binary", "the bind's source is this program's file, by SHA-256, and runnable by nobody", "what runs must be what was audited"},
	{"entrypoint", "entrypoint: [" + binaryTarget + "]", "only the probe may run"},
	{"command", "command: exactly what was asked for", "only the probe may run"},
	{"restart", `restart: "no", no deploy.restart_policy`, "a restarted probe is a second experiment"},
	{"devices", "no devices, device_cgroup_rules, gpus or runtime", "devices come by the one reservation"},
	{"groups", "no group_add", "groups open device files"},
	{"bounds", "mem_limit, memswap_limit the same, pids_limit, a /tmp of bounded size, deadline: each within its limits", "a probe that fails must not take the host with it"},
	{"logging", "logging: {driver: none}", "output is read by the program, up to a limit; an engine's log has none"},
	{"unreviewed_setting", "no setting but those that the other rules know", "a setting that nobody has looked at may undo any of them"},
}

// Rules returns the audit's rules.
func Rules() []Rule { return append([]Rule(nil), rules...) }

const (
	nobody       = "65534:65534"
	binaryTarget = "/cotenant"
	tmpTarget    = "/tmp"
	runVariable  = "COTENANT_PROBE_RUN"
)

// Limits that the audit holds a service to.
const (
	maxMemory = 8 << 30
	maxPIDs   = 4096
	maxTmp    = 256 << 20
)

// Refusal is a rule that a service breaks.
type Refusal struct {
	Rule    string `json:"rule"`
	Setting string `json:"setting"` // of the service; empty where it is about none
	Found   string `json:"found"`
	Want    string `json:"want"`
	Why     string `json:"why"`
	Hint    string `json:"hint,omitempty"`
}

// Error makes a refusal an error's text.
func (r Refusal) Error() string {
	text := r.Rule + ": " + r.Setting + " is " + r.Found + ", want " + r.Want
	if r.Hint != "" {
		text += " (" + r.Hint + ")"
	}
	return text
}

func ruleOf(id string) Rule {
	for _, r := range rules {
		if r.ID == id {
			return r
		}
	}
	panic("internal error: no rule " + id)
}
