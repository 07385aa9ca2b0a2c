package container

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	testUUID = "GPU-11111111-2222-3333-4444-555555555555"
	testRun  = "20260102T030405Z-0123456789abcdef"
)

func testOptions(file string) Options {
	return Options{GPUUUID: testUUID, Run: testRun, Arguments: []string{"probe", "create", "--sms", "16,rest", "--note", "it's", "$HOME"}, File: file}
}

// planOf plans the default file, changed.
func planOf(t *testing.T, changes ...string) *Plan {
	t.Helper()
	p, err := tryPlan(t, changes...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tryPlan(t *testing.T, changes ...string) (*Plan, error) {
	t.Helper()
	return NewPlan(testOptions(changedFile(t, changes...)))
}

// changedFile writes the default file with parts replaced: old, new, old, new and so on. Every old must be there, once.
func changedFile(t *testing.T, changes ...string) string {
	t.Helper()
	text := string(defaultFile)
	for i := 0; i < len(changes); i += 2 {
		if strings.Count(text, changes[i]) != 1 {
			t.Fatalf("%q is in the default file %d times", changes[i], strings.Count(text, changes[i]))
		}
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	path := filepath.Join(t.TempDir(), "compose.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func rulesOf(p *Plan) []string {
	var ids []string
	for _, r := range p.Refusals {
		if !slices.Contains(ids, r.Rule) {
			ids = append(ids, r.Rule)
		}
	}
	return ids
}

// The embedded file passes, and arguments survive the way through it.
func TestDefaultPasses(t *testing.T) {
	p, err := NewPlan(testOptions(""))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Refusals) > 0 {
		t.Fatalf("refused: %v", p.Refused())
	}
	if !slices.Equal(p.body.Cmd, testOptions("").Arguments) {
		t.Errorf("command %q", p.body.Cmd)
	}
	if p.Project != "cotenant-probe" || p.Container != "cotenant-probe" || p.Image.Why == "" || p.Binary.SHA256 == "" {
		t.Errorf("%+v", p)
	}
	h := p.body.HostConfig
	if !h.AutoRemove || !h.ReadonlyRootfs || h.NetworkMode != "none" || h.Memory != 2<<30 || h.MemorySwap != 2<<30 || h.PidsLimit != 512 || h.Tmpfs["/tmp"] != "rw,noexec,nosuid,nodev,size=67108864,mode=1777" {
		t.Errorf("%+v", h)
	}
	if !strings.Contains(p.Rendered, testUUID) || strings.Contains(p.Rendered, "${") || len(p.Requests) == 0 {
		t.Errorf("rendered: %s", p.Rendered)
	}
}

// line adds a setting to the service.
func line(text string) []string {
	return []string{"    restart: \"no\"\n", "    restart: \"no\"\n    " + text + "\n"}
}

// Every rule refuses, and each of these files breaks that rule alone.
func TestEachRuleAlone(t *testing.T) {
	dir := t.TempDir()
	other, closed := filepath.Join(dir, "other"), filepath.Join(dir, "closed")
	if err := os.WriteFile(other, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skip("no /proc/self/exe")
	}
	if err := os.WriteFile(closed, program, 0o700); err != nil {
		t.Fatal(err)
	}
	const image, digest = "${COTENANT_IMAGE:?}", "sha256:362e64223cc0da95422b3b13c045186fc0a81250e765d31c025fbddf257f6143"
	device := []string{`            - driver: nvidia
              device_ids: ["${COTENANT_GPU_UUID:?}"]
              capabilities: [gpu, compute, utility]
`}
	reservation := func(text string) []string { return append(device, text) }
	tmp := func(text string) []string { return []string{"/tmp:rw,noexec,nosuid,nodev,size=64m,mode=1777", text} }
	bind := "      - type: bind\n"
	for _, c := range []struct {
		rule, name string
		changes    []string
	}{
		{"profile", "none", []string{"    profiles: [probe]\n", ""}},
		{"profile", "another", []string{"profiles: [probe]", "profiles: [other]"}},
		{"profile", "one more", []string{"profiles: [probe]", "profiles: [probe, other]"}},
		{"image_digest", "a tag", []string{image, "debian:bookworm-slim"}},
		{"image_digest", "no tag", []string{image, "debian"}},
		{"image_digest", "a tag and a digest", []string{image, "debian:bookworm-slim@" + reviewed[0].Digest}},
		{"image_digest", "half a digest", []string{image, "debian@sha256:362e64223cc0"}},
		{"image_digest", "an image's id", []string{image, strings.TrimPrefix(digest, "sha256:")}},
		{"image_reviewed", "another digest", []string{image, "debian@" + digest}},
		{"image_reviewed", "another name", []string{image, "example.com/debian@" + reviewed[0].Digest}},
		{"image_reviewed", "musl", []string{image, "alpine@" + digest}},
		{"image_reviewed", "the seed's index", []string{image, "nvidia/cuda@sha256:9cf8694a27722418a1f175d90f85d5afb5a728fd4a9907d7f0565efecfa14d32"}},
		{"image_reviewed", "another platform's", []string{image, "debian@" + otherPlatform().Digest}},
		{"platform", "none", []string{"    platform: ${COTENANT_PLATFORM:?}\n", ""}},
		{"platform", "without an architecture", []string{"${COTENANT_PLATFORM:?}", "linux"}},
		{"gpu_reservation", "none", []string{"    deploy:\n      resources:\n        reservations:\n          devices:\n" + device[0], ""}},
		{"gpu_reservation", "all", reservation("            - driver: nvidia\n              count: all\n              capabilities: [gpu, compute, utility]\n")},
		{"gpu_reservation", "another", reservation("            - driver: nvidia\n              device_ids: [GPU-00000000-2222-3333-4444-555555555555]\n              capabilities: [gpu, compute, utility]\n")},
		{"gpu_reservation", "an index", reservation("            - driver: nvidia\n              device_ids: [\"0\"]\n              capabilities: [gpu, compute, utility]\n")},
		{"gpu_reservation", "two devices", reservation("            - driver: nvidia\n              device_ids: [\"${COTENANT_GPU_UUID:?}\", \"1\"]\n              capabilities: [gpu, compute, utility]\n")},
		{"gpu_reservation", "two requests", reservation(device[0] + "            - driver: nvidia\n              device_ids: [\"1\"]\n              capabilities: [gpu]\n")},
		{"gpu_reservation", "another driver", reservation("            - driver: cdi\n              device_ids: [\"${COTENANT_GPU_UUID:?}\"]\n              capabilities: [gpu, compute, utility]\n")},
		{"gpu_reservation", "options", reservation(device[0] + "              options: {virtualization: \"false\"}\n")},
		{"gpu_reservation", "display", []string{"[gpu, compute, utility]", "[gpu, compute, utility, display]"}},
		{"visible_devices", "absent", []string{"      CUDA_VISIBLE_DEVICES: ${COTENANT_GPU_UUID:?}\n", ""}},
		{"visible_devices", "an index", []string{"CUDA_VISIBLE_DEVICES: ${COTENANT_GPU_UUID:?}", "CUDA_VISIBLE_DEVICES: 0"}},
		{"visible_devices", "a prefix", []string{"CUDA_VISIBLE_DEVICES: ${COTENANT_GPU_UUID:?}", "CUDA_VISIBLE_DEVICES: " + testUUID[:12]}},
		{"visible_devices", "one more", []string{"CUDA_VISIBLE_DEVICES: ${COTENANT_GPU_UUID:?}", "CUDA_VISIBLE_DEVICES: ${COTENANT_GPU_UUID:?},1"}},
		{"device_order", "absent", []string{"      CUDA_DEVICE_ORDER: PCI_BUS_ID\n", ""}},
		{"device_order", "fastest first", []string{"PCI_BUS_ID", "FASTEST_FIRST"}},
		{"environment", "a preload", []string{"      CUDA_DEVICE_ORDER", "      LD_PRELOAD: /tmp/x.so\n      CUDA_DEVICE_ORDER"}},
		{"environment", "all devices", []string{"      CUDA_DEVICE_ORDER", "      NVIDIA_VISIBLE_DEVICES: all\n      CUDA_DEVICE_ORDER"}},
		{"environment", "from outside", []string{"      CUDA_DEVICE_ORDER", "      HOME:\n      CUDA_DEVICE_ORDER"}},
		{"environment", "another run", []string{"${COTENANT_RUN:?}", "20260101T000000Z-0000000000000000"}},
		{"privileged", "true", line("privileged: true")},
		{"capabilities", "kept", []string{"    cap_drop: [ALL]\n", ""}},
		{"capabilities", "one dropped", []string{"cap_drop: [ALL]", "cap_drop: [NET_RAW]"}},
		{"capabilities", "one added", line("cap_add: [SYS_ADMIN]")},
		{"no_new_privileges", "absent", []string{"    security_opt: [\"no-new-privileges:true\"]\n", ""}},
		{"security_options", "seccomp off", []string{`["no-new-privileges:true"]`, `["no-new-privileges:true", "seccomp:unconfined"]`}},
		{"security_options", "AppArmor off", []string{`["no-new-privileges:true"]`, `["no-new-privileges:true", "apparmor=unconfined"]`}},
		{"security_options", "SELinux off", []string{`["no-new-privileges:true"]`, `["no-new-privileges:true", "label:disable"]`}},
		{"security_options", "the opposite besides", []string{`["no-new-privileges:true"]`, `["no-new-privileges:true", "no-new-privileges:false"]`}},
		{"user", "root", []string{`"65534:65534"`, `"0:0"`}},
		{"user", "the image's", []string{"    user: \"65534:65534\"\n", ""}},
		{"read_only_root", "absent", []string{"    read_only: true\n    tmpfs", "    tmpfs"}},
		{"read_only_root", "false", []string{"    read_only: true\n    tmpfs", "    read_only: false\n    tmpfs"}},
		{"ports", "published", line(`ports: ["127.0.0.1:8080:80"]`)},
		{"ports", "exposed", line(`expose: ["80"]`)},
		{"network", "the host's", []string{"network_mode: none", "network_mode: host"}},
		{"network", "the project's", []string{"    network_mode: none\n", ""}},
		{"network", "another container's", []string{"network_mode: none", "network_mode: \"container:web\""}},
		{"network", "a named one", []string{"    network_mode: none\n", "    networks: [back]\n"}},
		{"namespaces", "host pid", line("pid: host")},
		{"namespaces", "host ipc", line("ipc: host")},
		{"namespaces", "shareable ipc", line("ipc: shareable")},
		{"namespaces", "host users", line("userns_mode: host")},
		{"namespaces", "host uts", line("uts: host")},
		{"namespaces", "host cgroup", line("cgroup: host")},
		{"namespaces", "another cgroup", line("cgroup_parent: /system.slice")},
		{"binds", "one more", []string{bind, "      - /etc:/etc2:ro\n" + bind}},
		{"binds", "the engine's socket", []string{bind, "      - /var/run/docker.sock:/var/run/docker.sock\n" + bind}},
		{"binds", "a volume", []string{bind, "      - data:/data\n" + bind}},
		{"binds", "writable", []string{"        read_only: true\n", ""}},
		{"binds", "elsewhere", []string{"target: /cotenant", "target: /usr/bin/cotenant"}},
		{"binds", "none", []string{bind + "        source: ${COTENANT_BINARY:?}\n        target: /cotenant\n        read_only: true\n        bind:\n          create_host_path: false\n", "      []\n"}},
		{"binds", "propagated", []string{"create_host_path: false", "propagation: rshared"}},
		{"binary", "another program", []string{"${COTENANT_BINARY:?}", other}},
		{"binary", "absent", []string{"${COTENANT_BINARY:?}", "/nonexistent"}},
		{"binary", "a folder", []string{"${COTENANT_BINARY:?}", "/"}},
		{"binary", "for its owner alone", []string{"${COTENANT_BINARY:?}", closed}},
		{"entrypoint", "a shell", []string{"entrypoint: [/cotenant]", "entrypoint: [/bin/sh, -c]"}},
		{"entrypoint", "the image's", []string{"    entrypoint: [/cotenant]\n", ""}},
		{"command", "another", []string{"${COTENANT_COMMAND:?}", "probe mps"}},
		{"command", "longer", []string{"${COTENANT_COMMAND:?}", "${COTENANT_COMMAND:?} --allow-processes"}},
		{"command", "the image's", []string{"    command: ${COTENANT_COMMAND:?}\n", ""}},
		{"restart", "always", []string{`restart: "no"`, "restart: always"}},
		{"restart", "absent", []string{"    restart: \"no\"\n", ""}},
		{"restart", "by deploy", []string{"    deploy:\n", "    deploy:\n      restart_policy: {condition: any}\n"}},
		{"devices", "a device", line(`devices: ["/dev/nvidia1:/dev/nvidia1"]`)},
		{"devices", "a rule", line(`device_cgroup_rules: ["c 195:* rwm"]`)},
		{"devices", "gpus", line("gpus: all")},
		{"devices", "a runtime", line("runtime: nvidia")},
		{"groups", "video", line("group_add: [video]")},
		{"bounds", "no memory limit", []string{"    mem_limit: 2g\n    memswap_limit: 2g\n", ""}},
		{"bounds", "much memory", []string{"mem_limit: 2g\n    memswap_limit: 2g", "mem_limit: 9g\n    memswap_limit: 9g"}},
		{"bounds", "swap", []string{"memswap_limit: 2g", "memswap_limit: 4g"}},
		{"bounds", "unlimited swap", []string{"memswap_limit: 2g", "memswap_limit: -1"}},
		{"bounds", "no pids limit", []string{"    pids_limit: 512\n", ""}},
		{"bounds", "unlimited pids", []string{"pids_limit: 512", "pids_limit: -1"}},
		{"bounds", "pids beyond numbers", []string{"pids_limit: 512", "pids_limit: 99999999999999999999999"}},
		{"bounds", "memory beyond numbers", []string{"mem_limit: 2g\n    memswap_limit: 2g", "mem_limit: 99999999999g\n    memswap_limit: 99999999999g"}},
		{"bounds", "a large /tmp", tmp("/tmp:noexec,nosuid,nodev,size=1g")},
		{"bounds", "an unbounded /tmp", tmp("/tmp:noexec,nosuid,nodev")},
		{"bounds", "half of the memory", tmp("/tmp:noexec,nosuid,nodev,size=50%")},
		{"bounds", "an executable /tmp", tmp("/tmp:nosuid,nodev,size=1m")},
		{"bounds", "another folder", tmp("/run:noexec,nosuid,nodev,size=1m")},
		{"bounds", "another deadline", []string{"${COTENANT_DEADLINE:?}", "24h"}},
		{"bounds", "no deadline", []string{"      COTENANT_CONTAINER_DEADLINE: ${COTENANT_DEADLINE:?}\n", ""}},
		{"logging", "the engine's default", []string{"    logging:\n      driver: none\n", ""}},
		{"logging", "elsewhere", []string{"      driver: none\n", "      driver: syslog\n"}},
		{"unreviewed_setting", "build", line("build: .")},
		{"unreviewed_setting", "env_file", line("env_file: secrets.env")},
		{"unreviewed_setting", "extends", line("extends: {file: other.yaml, service: x}")},
		{"unreviewed_setting", "depends_on", line("depends_on: [web]")},
		{"unreviewed_setting", "sysctls", line("sysctls: {net.ipv4.ip_forward: 1}")},
		{"unreviewed_setting", "ulimits", line("ulimits: {memlock: -1}")},
		{"unreviewed_setting", "labels", line("labels: {a: b}")},
		{"unreviewed_setting", "secrets", line("secrets: [key]")},
		{"unreviewed_setting", "a hook", line("post_start: [{command: id}]")},
		{"unreviewed_setting", "healthcheck", line("healthcheck: {test: id}")},
		{"unreviewed_setting", "volumes_from", line("volumes_from: [\"container:x\"]")},
		{"unreviewed_setting", "engine socket", line("use_api_socket: true")},
		{"unreviewed_setting", "a terminal", line("tty: true")},
		{"unreviewed_setting", "several", line("scale: 2")},
		{"unreviewed_setting", "replicas", []string{"    deploy:\n", "    deploy:\n      replicas: 2\n"}},
		{"unreviewed_setting", "limits", []string{"      resources:\n", "      resources:\n        limits: {memory: 99g}\n"}},
		{"unreviewed_setting", "generic resources", []string{"        reservations:\n", "        reservations:\n          memory: 1g\n"}},
		{"unreviewed_setting", "a folder", []string{"working_dir: /tmp", "working_dir: /"}},
		{"unreviewed_setting", "include", []string{"services:\n", "include: [other.yaml]\nservices:\n"}},
	} {
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			p := planOf(t, c.changes...)
			if got := rulesOf(p); !slices.Equal(got, []string{c.rule}) {
				t.Fatalf("refused by %v: %v", got, p.Refusals)
			}
			if len(p.Requests) > 0 {
				t.Error("a refused plan has requests")
			}
			if _, err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.rule) {
				t.Errorf("Run: %v", err)
			}
			for _, r := range p.Refusals {
				if r.Setting == "" || r.Want == "" || r.Why == "" || r.Found == "" {
					t.Errorf("%+v explains nothing", r)
				}
			}
		})
		seen[c.rule] = true
	}
	for _, r := range rules {
		if !seen[r.ID] {
			t.Errorf("rule %s has no file that breaks it", r.ID)
		}
	}
}

var seen = make(map[string]bool)

func otherPlatform() Image {
	for _, i := range reviewed {
		if i.Platform != platform() {
			return i
		}
	}
	panic("none")
}

// What says the same in other words passes.
func TestOtherWordsPass(t *testing.T) {
	for name, changes := range map[string][]string{
		"short image name":   {"${COTENANT_IMAGE:?}", "debian@" + Reviewed()[slices.IndexFunc(reviewed, func(i Image) bool { return i.Platform == platform() })].Digest},
		"short bind":         {"      - type: bind\n        source: ${COTENANT_BINARY:?}\n        target: /cotenant\n        read_only: true\n        bind:\n          create_host_path: false\n", "      - ${COTENANT_BINARY:?}:/cotenant:ro\n"},
		"list of variables":  {"      CUDA_DEVICE_ORDER: PCI_BUS_ID\n      CUDA_VISIBLE_DEVICES: ${COTENANT_GPU_UUID:?}\n      COTENANT_CONTAINER_DEADLINE: ${COTENANT_DEADLINE:?}\n      COTENANT_PROBE_RUN: ${COTENANT_RUN:?}\n", "      - CUDA_DEVICE_ORDER=PCI_BUS_ID\n      - CUDA_VISIBLE_DEVICES=${COTENANT_GPU_UUID:?}\n      - COTENANT_CONTAINER_DEADLINE=${COTENANT_DEADLINE:?}\n      - COTENANT_PROBE_RUN=${COTENANT_RUN:?}\n"},
		"defaults spelt out": line("privileged: false\n    tty: false\n    init: false\n    cap_add: []\n    ports: []\n    ipc: private"),
		"an extension":       line("x-note: why"),
		"other services":     {"services:\n", "volumes: {data: {}}\nnetworks: {back: {}}\nservices:\n  web:\n    image: nginx\n    ports: [\"80:80\"]\n    networks: [back]\n    volumes: [\"data:/data\"]\n"},
		"the old version":    {"services:\n", "version: \"3.9\"\nservices:\n"},
		"smaller bounds":     {"mem_limit: 2g\n    memswap_limit: 2g\n    pids_limit: 512", "mem_limit: 512m\n    memswap_limit: 512m\n    pids_limit: 64"},
	} {
		t.Run(name, func(t *testing.T) {
			if p := planOf(t, changes...); len(p.Refusals) > 0 {
				t.Error(p.Refused())
			}
		})
	}
}

// A file that isn't one is an error that says why.
func TestUnreadable(t *testing.T) {
	for name, c := range map[string]struct {
		changes []string
		want    string
	}{
		"no service":          {[]string{"  probe:\n", "  other:\n"}, "no service probe; it has other"},
		"a foreign variable":  {[]string{"PCI_BUS_ID", "${ORDER:-PCI_BUS_ID}"}, "ORDER"},
		"HOME":                {[]string{"${COTENANT_BINARY:?}", "$HOME/cotenant"}, "HOME"},
		"an unknown setting":  {line("cap_dropp: [ALL]"), "cap_dropp"},
		"no YAML":             {[]string{"services:\n", "services: [\n"}, "reading the Compose file"},
		"a list":              {[]string{"name: cotenant-probe\nservices:", "- a\n#"}, "reading the Compose file"},
		"a wrong type":        {[]string{"pids_limit: 512", "pids_limit: {a: b}"}, "reading the Compose file"},
		"an alias of itself":  {[]string{"name: cotenant-probe\nservices:", "x: &x {y: *x}\nname: cotenant-probe\nservices:"}, "contains itself"},
		"a merge of itself":   {[]string{"name: cotenant-probe\nservices:", "x: &x\n  a: b\n  <<: *x\nname: cotenant-probe\nservices:"}, "contains itself"},
		"aliases that grow":   {[]string{"name: cotenant-probe\nservices:", bomb() + "name: cotenant-probe\nservices:"}, "more than"},
		"an empty file":       {[]string{string(defaultFile), ""}, "reading the Compose file"},
		"a large file":        {[]string{"services:\n", strings.Repeat("# x\n", 100<<10) + "services:\n"}, "bytes"},
		"no such environment": {[]string{"      CUDA_DEVICE_ORDER: PCI_BUS_ID", "      CUDA_DEVICE_ORDER: ${UNSET}"}, "UNSET"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryPlan(t, c.changes...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
	if _, err := NewPlan(testOptions("/nonexistent/compose.yaml")); err == nil {
		t.Error("no error for an absent file")
	}
}

// bomb is a chain of anchors, each ten times the one before.
func bomb() string {
	text := "x0: &x0 [a, a]\n"
	for i := 1; i < 10; i++ {
		text += fmt.Sprintf("x%d: &x%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 10), ", "))
	}
	return text
}

// Nothing of the environment gets into a plan.
func TestEnvironmentStaysOut(t *testing.T) {
	t.Setenv("COTENANT_GPU_UUID", "GPU-ffffffff-2222-3333-4444-555555555555")
	t.Setenv("COMPOSE_PROJECT_NAME", "elsewhere")
	t.Setenv("COMPOSE_PROFILES", "other")
	t.Setenv("LD_PRELOAD_X", "y")
	p := planOf(t)
	if len(p.Refusals) > 0 || p.Project != "cotenant-probe" || !slices.Equal(p.body.HostConfig.DeviceRequests[0].DeviceIDs, []string{testUUID}) {
		t.Errorf("%+v", p)
	}
}
