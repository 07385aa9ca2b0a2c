package gputest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (d MPSDaemon) pipe() string {
	if d.Pipe == "" {
		return "/tmp/nvidia-mps"
	}
	return d.Pipe
}

func (d MPSDaemon) arguments() []string {
	if d.Arguments == nil {
		return []string{"-d"}
	}
	return d.Arguments
}

// static reports whether the daemon was started for static partitioning.
func (d MPSDaemon) static() bool {
	for _, a := range d.arguments() {
		if a == "-S" || a == "--static-partitioning" {
			return true
		}
	}
	return false
}

// v3 reports whether the daemon speaks protocol 3.
func (d MPSDaemon) v3() bool {
	return strings.Contains(strings.Join(d.arguments(), " ")+" ", "-p 3 ")
}

// mpsScript is nvidia-cuda-mps-control as a client: an input on stdin a line, or a module and a verb as arguments. What it says
// is, where known, what control binary 13000 said on an H200 and what NVIDIA's MPS documentation shows; it exits 0 after an
// unknown command, as that one does.
func (m *Machine) mpsScript(t testing.TB, p MPS) string {
	t.Helper()
	if p.Hang {
		return m.head() + "note \"mps hang $*\"\nexec " + quote(build(t, "hang.c", "hang")) + " grandchild " + quote(m.Path("/.fake/alive")) + "\n"
	}
	var folders strings.Builder
	for i, d := range p.Daemons {
		if !d.NoProcess && !d.Zombie && !d.Deaf {
			fmt.Fprintf(&folders, "%s) D=%s ;;\n", quote(m.Path(d.pipe())), quote(m.Path(fmt.Sprintf("/.fake/mps/%d", i))))
		}
	}
	return m.head() + `PIPE=${CUDA_MPS_PIPE_DIRECTORY:-` + m.Path("/tmp/nvidia-mps") + `}
D=
case "$PIPE" in
` + folders.String() + `esac
ask() {
  printf '%s\n' "$1" > "$PIPE/.in.$$.new" && mv "$PIPE/.in.$$.new" "$PIPE/.in.$$"
  for i in $(seq 400); do
    if [ -e "$PIPE/.out.$$" ]; then cat "$PIPE/.out.$$"; rm -f "$PIPE/.out.$$"; return; fi
    [ -d "$PIPE" ] || return
    sleep 0.01
  done
}
lost() { echo 'Cannot find MPS control daemon process'; exit 1; }
answer() {
  key=$(printf %s "$1" | tr -c 'a-zA-Z0-9' '_')
  case "$1" in
  quit*|start_server*|set_*|terminate_client*|"sm_partition "*|*" create "*|*" set "*|*" delete "*|*" remove "*|"server start"*|"server stop"*)
    note "MUTATING mps $PIPE: $1" ;;
  *) note "mps $PIPE: $1" ;;
  esac
  if [ -z "$D" ] && [ -e "$PIPE/.state" ]; then ask "$1"; return; fi
  [ -n "$D" ] || lost
  if [ -e "$D/$key" ]; then cat "$D/$key"; return; fi
  case "$1" in
  "get_server_status "*) [ -e "$D/v3" ] || { echo ACTIVE; return; } ;;
  "get_active_thread_percentage "*) [ -e "$D/v3" ] || { echo 100.0; return; } ;;
  esac
  if [ -e "$D/v3" ]; then echo "Usage: nvidia-cuda-mps-control <module> <verb> [arguments] [options]"; return; fi
  printf 'Unknown command "%s"\n' "${1%% *}"
}
case "$1" in
-v|--version) note "mps -v"; echo "CUDA MPS Control for Linux/Unix/QNX. Binary version: ` + fmt.Sprint(p.Version) + `"; exit 0 ;;
-f) note "MUTATING mps $*"; exec ` + quote(build(t, "mpsd.c", "mpsd")) + ` "$PIPE" ` + fmt.Sprintf("%d %d ", p.Version, m.sms()) + quote(m.Path("/.fake/alive")) + ` "$@" ;;
-d|-q|-S|--static-partitioning) note "MUTATING mps $*"; exit 0 ;;
-*) note "mps $*"; echo "Unrecognized option '$1'"; echo 'Usage: nvidia-cuda-mps-control [-d|-f|-v]'; exit 0 ;;
'') while read -r line; do answer "$line"; done ;;
*)
  [ -z "$D" ] || [ -e "$D/v3" ] || { note "mps $*"; echo "Unrecognized option '$1'"; exit 0; }
  answer "$*" ;;
esac
exit 0
`
}

// sms are those of the first GPU.
func (m *Machine) sms() int {
	if len(m.Host.GPUs) == 0 {
		return 0
	}
	return m.Host.GPUs[0].SMs
}

// daemon writes what a daemon leaves in /proc, in its pipe folder, and its answers.
func (m *Machine) daemon(t testing.TB, p MPS, index int, d MPSDaemon) {
	t.Helper()
	answers := m.answers(p, d)
	for input, text := range d.Texts {
		answers[input] = text
	}
	dir := fmt.Sprintf("/.fake/mps/%d/", index)
	for input, text := range answers {
		key := strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
				return r
			}
			return '_'
		}, input)
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		m.write(t, dir+key, text, 0o644)
	}
	if d.v3() {
		m.write(t, dir+"v3", "", 0o644)
	}
	m.write(t, filepath.Join(d.pipe(), "control"), "", 0o600)
	file := d.PIDFile
	if file == "" {
		file = fmt.Sprintf("%d\n", d.PID)
	}
	m.write(t, filepath.Join(d.pipe(), "nvidia-cuda-mps-control.pid"), file, 0o644)
	if d.NoProcess {
		return
	}
	line := append([]string{"nvidia-cuda-mps-control"}, d.arguments()...)
	env := []string{"PATH=/usr/bin"}
	if !d.HidePipe {
		env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+d.pipe())
	}
	m.process(t, d.PID, 1, d.UID, line, env, d.Zombie)
	if d.DenyEnviron {
		if err := chmodNone(m.Path(fmt.Sprintf("/proc/%d/environ", d.PID))); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range d.Servers {
		m.process(t, s, d.PID, d.UID, []string{"nvidia-cuda-mps-server"}, env, false)
	}
}

// process writes a process's files in /proc. A zombie has neither command line nor environment.
func (m *Machine) process(t testing.TB, pid, ppid, uid int, line, env []string, zombie bool) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	name, state := filepath.Base(line[0]), "S"
	if len(name) > 15 {
		name = name[:15]
	}
	if zombie {
		line, env, state = nil, nil, "Z"
	} else {
		m.mkdir(t, dir)
		if err := os.Symlink("/usr/bin/"+line[0], m.Path(dir+"exe")); err != nil {
			t.Fatal(err)
		}
	}
	zero := func(parts []string) string {
		if len(parts) == 0 {
			return ""
		}
		return strings.Join(parts, "\x00") + "\x00"
	}
	m.write(t, dir+"cmdline", zero(line), 0o644)
	m.write(t, dir+"environ", zero(env), 0o600)
	m.write(t, dir+"stat", fmt.Sprintf("%d (%s) %s %d %d %d 0 -1\n", pid, name, state, ppid, pid, pid), 0o644)
	m.write(t, dir+"status", fmt.Sprintf("Name:\t%s\nState:\t%s\nPid:\t%d\nPPid:\t%d\nUid:\t%d\t%d\t%d\t%d\n", name, state, pid, ppid, uid, uid, uid, uid), 0o644)
}

// answers are what a daemon says to the read-only inputs.
func (m *Machine) answers(p MPS, d MPSDaemon) map[string]string {
	if d.v3() {
		return m.answersV3(d)
	}
	servers := ""
	for _, s := range d.Servers {
		servers += fmt.Sprintln(s)
	}
	a := map[string]string{
		"get_server_list":                      servers,
		"get_default_active_thread_percentage": "100.0",
		"get_default_client_priority":          "0",
		"ps":                                   "Server not found",
	}
	if len(d.Servers) > 0 {
		ps := "PID       ID    SERVER    DEVICE             NAMESPACE      COMMAND\n"
		for _, g := range m.Host.GPUs {
			for i, c := range g.MPSClients {
				ps += fmt.Sprintf("%-9d %-5d %-9d %-18s %-14d %s\n", c.PID, i+1, d.Servers[0], g.UUID[:min(23, len(g.UUID))], 4026531836, "python3")
			}
		}
		a["ps"] = ps
	}
	var q strings.Builder
	sections := []string{"Default"}
	for _, s := range d.Servers {
		sections = append(sections, fmt.Sprintf("Server %d", s))
	}
	for _, s := range sections {
		fmt.Fprintf(&q, "%s\nDevice Ordinal,PCI IDs,UUID,Name,Attributes\n", s)
		for i, g := range m.Host.GPUs {
			bus := strings.TrimPrefix(g.Bus, "0000")
			fmt.Fprintf(&q, "%d,%s,%s,%s,N/A\n", i, strings.Replace(bus, ":", ":", 1), g.UUID, g.Name)
		}
	}
	a["device_query --csv"] = q.String()
	if p.Version >= 13010 {
		a["lspart"] = "Failed to list partitions, static partitioning is not enabled"
		if d.static() {
			a["lspart"] = m.lspart()
		}
	}
	return a
}

// lspart is the documented table for a daemon without partitions: chunks of 8 SMs on Hopper and later, of 4 before, and of 2 on
// an integrated GPU. A whole number of chunks is less than the SMs: two of each GPC may be left over.
func (m *Machine) lspart() string {
	text := "GPU           Partition                             free  used  free  used  clients\n" +
		"                                                    chunk chunk SM    SM\n"
	for _, g := range m.Host.GPUs {
		size := 8
		switch major, _ := g.capability(); {
		case g.Integrated:
			size = 2
		case major < 9:
			size = 4
		}
		chunks := g.SMs / size
		if g.SMs == 132 {
			chunks = 15 // of 8: what an H100 lists
		}
		text += fmt.Sprintf("%-13s %-37s %-5d %-5d %-5d %-5d -\n", g.UUID[:min(12, len(g.UUID))], "-", chunks, 0, g.SMs, 0)
	}
	return text
}

func (m *Machine) answersV3(d MPSDaemon) map[string]string {
	servers, devices := "", ""
	for _, s := range d.Servers {
		servers += fmt.Sprintf("uid_%d,%d,%d,Ready,%s/uid_%d,-,-\n", d.UID, d.UID, s, d.pipe(), d.UID)
	}
	for i, g := range m.Host.GPUs {
		devices += fmt.Sprintf("%d,uid_%d,%s,%s,%s,%d,%d,-\n", i, d.UID, g.Bus, g.UUID, g.Name, g.SMs, g.SMs/8)
	}
	return map[string]string{
		"server list --format=csv,noheader":             servers,
		"device list --format=csv,noheader":             devices,
		"sm-partition list --all --format=csv,noheader": "",
	}
}
