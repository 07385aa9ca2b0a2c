package query

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
	"cotenant/internal/observe"
)

func TestMain(m *testing.M) {
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

func inspect(t *testing.T, name string, change func(*Options)) (Report, *gputest.Machine) {
	t.Helper()
	m := gputest.Start(t, gputest.Named(name))
	o := Options{Root: m.Root, Env: m.Env, Timeout: 30 * time.Second}
	if change != nil {
		change(&o)
	}
	r := Inspect(context.Background(), o)
	if got := m.Mutations(); len(got) > 0 {
		t.Errorf("%s: mutating inputs %q", name, got)
	}
	return r, m
}

func (r Report) find(input string) Answer {
	for _, a := range r.Answers {
		if a.Input == input {
			return a
		}
	}
	return Answer{Kind: "not asked"}
}

// TestInputsAreClosed: what can be put is a table of read-only inputs; numbers alone are added to it.
func TestInputsAreClosed(t *testing.T) {
	allowed := regexp.MustCompile(`^(get_[a-z_]+|ps|device_query --csv|lspart|-v|(server|device|sm-partition) list( --all)? --format=csv,noheader)$`)
	mutating := regexp.MustCompile(`quit|start|set_|terminate|add|rm\b|create|delete|remove|-[dfqS]\b|--static|-p\b`)
	for _, i := range Inputs() {
		if s := i.String(); !allowed.MatchString(s) || mutating.MatchString(s) {
			t.Errorf("input %q", s)
		}
	}
	// Whatever Input and pid are given, what reaches the program is a row of the table, with a positive number where it takes one.
	m := gputest.Start(t, gputest.Host{MPS: &gputest.MPS{Version: 13010, Daemons: []gputest.MPSDaemon{{PID: 9}}}})
	c := Control{Path: m.Path("/usr/bin/nvidia-cuda-mps-control"), Env: m.Env, Folder: m.Path("/tmp/nvidia-mps")}
	for i := 0; i < 256; i += 7 {
		for _, pid := range []int{math.MinInt, -1, 0, 1, math.MaxInt} {
			c.Ask(context.Background(), Input(i%int(inputCount+3)), pid)
		}
	}
	for i := range Inputs() {
		c.Ask(context.Background(), Input(i), 77)
	}
	c.Ask(context.Background(), 255, 1)
	line := regexp.MustCompile(`^mps (` + regexp.QuoteMeta(c.Folder) + `: )?(get_[a-z_]+( [1-9][0-9]*)?|ps|device_query --csv|lspart|-v|[a-z-]+ list( --all)? --format=csv,noheader)$`)
	log := m.Log()
	for _, l := range log {
		if !line.MatchString(l) {
			t.Errorf("the program was asked %q", l)
		}
	}
	if len(log) < int(inputCount) {
		t.Errorf("only %d inputs were logged", len(log))
	}
	if a := c.Ask(context.Background(), ServerStatus, -1); a.Kind != NotStarted {
		t.Errorf("a negative pid: %+v", a)
	}
}

// TestOneWayToAsk: the source runs a program in one place, Ask, and holds no mutating command.
func TestOneWayToAsk(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no files")
	}
	mutating := regexp.MustCompile(`^(quit|start_server|set_\w+|terminate_client|sm_partition|.*\b(add|rm|create|delete|remove)\b.*|-d.*|-f|-q|-S|--static-partitioning)$`)
	runs := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			if imp.Path.Value == `"os/exec"` || imp.Path.Value == `"syscall"` && !strings.HasPrefix(name, "owner_") {
				t.Errorf("%s imports %s", name, imp.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "bounded" && (n.Sel.Name == "Run" || n.Sel.Name == "Child") {
					runs++
				}
			case *ast.CompositeLit:
				// The table of inputs, where a mutating word would be one that can be put.
				if id, ok := n.Type.(*ast.ArrayType); ok {
					if elt, ok := id.Elt.(*ast.Ident); ok && elt.Name == "input" {
						ast.Inspect(n, func(n ast.Node) bool {
							if lit, ok := n.(*ast.BasicLit); ok {
								if s, _ := strconv.Unquote(lit.Value); mutating.MatchString(s) {
									t.Errorf("%s: input %q", name, s)
								}
							}
							return true
						})
					}
				}
			}
			return true
		})
	}
	if runs != 1 {
		t.Errorf("programs are run in %d places", runs)
	}
}

// The table of what control binary 13000 said on an H200.
func TestMeasured(t *testing.T) {
	r, _ := inspect(t, "h200-r580", func(o *Options) { o.Partitions = true })
	if r.Version.Or(0) != 13000 || r.Status != observe.SupportedProven {
		t.Errorf("%+v", r)
	}
	if a := r.find("get_server_list"); a.Kind != NoDaemon || a.ExitCode != 1 || len(r.Answers) != 2 {
		t.Errorf("no daemon: %+v", r.Answers)
	}
	r, _ = inspect(t, "h200-lspart-unknown", func(o *Options) { o.Partitions = true })
	if a := r.find("lspart"); a.Kind != UnknownCommand || a.ExitCode != 0 || r.Partitions.OK() || !strings.Contains(r.Partitions.Reason, `Unknown command "lspart"`) {
		t.Errorf("unknown with exit 0: %+v, %+v", a, r.Partitions)
	}
	if a := r.find("get_server_list"); a.Kind != Empty || a.ExitCode != 0 {
		t.Errorf("no server: %+v", a)
	}
	if a := r.find("ps"); a.Kind != NoServer || a.ExitCode != 0 {
		t.Errorf("ps: %+v", a)
	}
	r, _ = inspect(t, "h200-mps-client", nil)
	clients, ok := ParseProcesses(r.find("ps").Full())
	if !ok || len(clients) != 1 || clients[0].PID != 4300 || clients[0].Server != 4200 || len(clients[0].Device) != 23 || clients[0].Command != "python3" {
		t.Errorf("ps: %+v", clients)
	}
	if a := r.find("get_server_status 4200"); a.Kind != Answered || a.Text != "ACTIVE" {
		t.Errorf("status: %+v", a)
	}
	if r.Partitions.Reason != "not_asked" || r.find("lspart").Kind != "not asked" || len(r.SideEffects) != 0 {
		t.Errorf("lspart was asked without demand: %+v", r.Partitions)
	}
}

func TestDaemons(t *testing.T) {
	for name, c := range map[string]struct {
		daemons, servers int
		folder           string
		state            PIDState
		kind             Kind
	}{
		"h200-mps-idle":      {1, 0, "/tmp/nvidia-mps", PIDLive, Empty},
		"h200-mps-client":    {1, 1, "/tmp/nvidia-mps", PIDLive, Answered},
		"mps-stale-pid-file": {0, 0, "/tmp/nvidia-mps", PIDDead, NoDaemon},
		"mps-recycled-pid":   {0, 0, "/tmp/nvidia-mps", PIDRecycled, NoDaemon},
		"mps-zombie":         {1, 0, "/tmp/nvidia-mps", PIDZombie, NoDaemon},
		"mps-other-user":     {1, 1, "/tmp/nvidia-mps", PIDLive, Answered},
		"mps-deaf":           {1, 0, "/tmp/nvidia-mps", PIDLive, NoDaemon},
		"k8s-node-mps":       {1, 1, "/run/nvidia/mps/nvidia.com/gpu/pipe", PIDLive, ""},
		"h200-r580":          {0, 0, "/tmp/nvidia-mps", PIDAbsent, NoDaemon},
	} {
		r, _ := inspect(t, name, nil)
		if len(r.Daemons) != c.daemons || len(r.Servers) != c.servers {
			t.Errorf("%s: %d daemons, %d servers", name, len(r.Daemons), len(r.Servers))
		}
		var folder Folder
		for _, f := range r.Folders {
			if f.Path == c.folder {
				folder = f
			}
		}
		if folder.PIDState != c.state {
			t.Errorf("%s: folder %+v", name, folder)
		}
		if a := r.find("get_server_list"); c.kind != "" && a.Kind != c.kind {
			t.Errorf("%s: %+v", name, a)
		}
	}
	r, _ := inspect(t, "mps-other-user", nil)
	if d := r.Daemons[0]; d.UID.Or(0) != 1001 || (os.Geteuid() != 0 && d.Pipe.Reason != "permission denied") {
		t.Errorf("%+v", d)
	}
	r, _ = inspect(t, "mps-long-path", nil)
	if f := r.Folders[0]; !f.TooLong || f.Why != "environment" || f.Exists {
		t.Errorf("%+v", f)
	}
	r, _ = inspect(t, "k8s-mps-pipe", nil)
	if f := r.Folders[0]; r.Status != observe.Unavailable || !f.Socket || f.PIDState != PIDDead || f.Path != "/mps/nvidia.com/gpu/pipe" {
		t.Errorf("%s, %+v", r.Status, f)
	}
}

func TestModes(t *testing.T) {
	r, _ := inspect(t, "mps-two-daemons", func(o *Options) { o.Partitions = true })
	if len(r.Daemons) != 2 || r.Daemons[0].Mode.Static || !r.Daemons[1].Mode.Static || r.Daemons[1].Pipe.Or("") != "/srv/mps-b" {
		t.Errorf("%+v", r.Daemons)
	}
	if rows, ok := r.Partitions.Get(); !ok || len(rows) != 1 || rows[0].FreeChunks.Or(0) != 15 || rows[0].FreeSMs.Or(0) != 132 {
		t.Errorf("%+v", r.Partitions)
	}
	r, _ = inspect(t, "mps-v3", func(o *Options) { o.Partitions = true })
	if !r.Daemons[0].Mode.Daemon || r.Daemons[0].Mode.Protocol != 3 {
		t.Errorf("%+v", r.Daemons)
	}
	servers, ok := ParseV3Servers(r.find("server list --format=csv,noheader").Full())
	if !ok || len(servers) != 1 || servers[0].PID != 4200 || servers[0].State != "Ready" {
		t.Errorf("%+v", servers)
	}
	for line, want := range map[string]Mode{
		"-d":                         {Daemon: true, Protocol: 2},
		"-f -S":                      {Daemon: true, Static: true, Protocol: 2},
		"-d --static-partitioning":   {Daemon: true, Static: true, Protocol: 2},
		"-d -multiuser-server -p 3":  {Daemon: true, MultiUser: true, Protocol: 3},
		"-d --protocol=3":            {Daemon: true, Protocol: 3},
		"-d -p":                      {Daemon: true, Protocol: 2},
		"":                           {Protocol: 2},
		"server list --format=table": {Protocol: 2},
	} {
		if got := modeOf(strings.Fields(line), ""); got != want {
			t.Errorf("%q: %+v", line, got)
		}
	}
	if got := modeOf([]string{"-d", "-p", "3"}, "2"); got.Protocol != 2 {
		t.Errorf("the variable wins: %+v", got)
	}
}

func TestHungControl(t *testing.T) {
	start := time.Now()
	r, _ := inspect(t, "mps-control-hung", func(o *Options) { o.Timeout = time.Second })
	if took := time.Since(start); took > time.Second+bounded.Overrun+20*time.Second {
		t.Errorf("took %v", took)
	}
	if r.Status != observe.Hung || r.Answers[0].Kind != Hung || len(r.Daemons) != 1 {
		t.Errorf("%s, %+v", r.Status, r.Answers)
	}
}

// Both shapes of lspart's table, an id that holds slashes, and SMs that aren't chunks times a constant.
func TestPartitions(t *testing.T) {
	const id = "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA"
	for name, want := range map[string][]Partition{
		"h100-lspart-seven": {
			{"GPU-c0ffee72", "", observe.Got("", 5), observe.Got("", 10), observe.Got("", 52), observe.Got("", 80), ""},
			{"GPU-c0ffee72", id, observe.None[int]("", 0, "not applicable"), observe.Got("", 10), observe.None[int]("", 0, "not applicable"), observe.Got("", 80), "1"}},
		"h100-lspart-five": {
			{"GPU-c0ffee73", "", observe.Got("", 5), observe.Got("", 10), observe.Got("", 52), observe.Got("", 80), ""},
			{"GPU-c0ffee73", id, observe.None[int]("", 0, "not in this shape of the table"), observe.Got("", 10),
				observe.None[int]("", 0, "not in this shape of the table"), observe.Got("", 80), "Yes"}},
		"h200-mps-static": {
			{"GPU-c0ffee71", "", observe.Got("", 15), observe.Got("", 0), observe.Got("", 132), observe.Got("", 0), ""}},
	} {
		r, _ := inspect(t, name, func(o *Options) { o.Partitions = true })
		got, ok := r.Partitions.Get()
		if !ok {
			t.Errorf("%s: %+v", name, r.Partitions)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if len(r.SideEffects) != 1 {
			t.Errorf("%s: side effects %q", name, r.SideEffects)
		}
	}
}

func TestParsers(t *testing.T) {
	if _, ok := ParsePartitions("Unknown command \"lspart\""); ok {
		t.Error("an error is a table")
	}
	if rows, ok := ParsePartitions("GPU Partition free used free used clients\nchunk chunk SM SM\nGPU-1 - x 7 24 56 -\nGPU-1 a b\n"); !ok || len(rows) != 0 {
		t.Errorf("malformed rows: %+v", rows)
	}
	for text, want := range map[string]int{
		"CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000": 13000,
		"Binary version: 13030\n":                                    13030, "version 12": 0, "": 0, "Binary version: 99999999999": 0,
	} {
		if got, ok := ParseVersion(text); got != want && !(want == 0 && ok) {
			t.Errorf("%q: %d", text, got)
		}
	}
	if pids, ok := ParseServerList("4200\n 4201 \n\n"); !ok || len(pids) != 2 || pids[1] != 4201 {
		t.Errorf("%v", pids)
	}
	for _, bad := range []string{"Server not found", "12 13", "-4", "0", "99999999999999"} {
		if _, ok := ParseServerList(bad); ok {
			t.Errorf("%q is a list", bad)
		}
	}
	for text, want := range map[string]float64{"100.0\n": 100, " 25 ": 25, "50%": 50} {
		if got, ok := ParsePercentage(text); !ok || got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for _, bad := range []string{"", "NaN", "-1", "101", "Unknown command"} {
		if _, ok := ParsePercentage(bad); ok {
			t.Errorf("%q is a percentage", bad)
		}
	}
	rows, ok := ParseDeviceQuery("Default\nDevice Ordinal,PCI IDs,UUID,Name,Attributes\n0,0000:00.06.00,GPU-1,NVIDIA H200, special,N/A\nServer 483\nDevice Ordinal,PCI IDs,UUID,Name,Attributes\n0,0000:00.06.00,GPU-1,NVIDIA H200,N/A\nx,y\n")
	if !ok || len(rows) != 2 || rows[0].Name != "NVIDIA H200, special" || rows[0].Section != "Default" || rows[1].Section != "Server 483" || rows[1].UUID != "GPU-1" {
		t.Errorf("%+v", rows)
	}
	servers, ok := ParseV3Servers("training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-\nidle,0,-,Stopped,/run/x,GPU-1,GPU-2,-\n")
	if !ok || len(servers) != 2 || servers[0].PID != 48201 || servers[1].PID != 0 || servers[1].Rest != "GPU-1,GPU-2,-" {
		t.Errorf("%+v", servers)
	}
	if _, ok := ParseV3Servers("Usage: nvidia-cuda-mps-control"); ok {
		t.Error("usage is a list")
	}
}

func TestJudge(t *testing.T) {
	ok := bounded.Result{Outcome: bounded.Exited}
	for text, want := range map[string]Kind{
		"":                                       Empty,
		"100.0":                                  Answered,
		"Cannot find MPS control daemon process": NoDaemon,
		"Unknown command \"lspart\"":             UnknownCommand,
		"Unrecognized option '-S'\nUsage: …":     Usage,
		"Server not found":                       NoServer,
		"User did not send valid credentials":    Refused,
		"Failed to fulfill the requested SM partition of 2 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION": Failed,
	} {
		if got := judge(ServerList, ok, text); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
	// A row may hold any words.
	if got := judge(Processes, ok, "PID ID SERVER DEVICE NAMESPACE COMMAND\n1 1 2 GPU-1 3 server not found usage: failed to"); got != Answered {
		t.Errorf("%s", got)
	}
	if got := judge(ServerList, bounded.Result{Outcome: bounded.Abandoned}, "4200"); got != Hung {
		t.Errorf("%s", got)
	}
	if got := judge(ServerList, bounded.Result{Outcome: bounded.Signaled}, "4200"); got != Failed {
		t.Errorf("%s", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, h := range gputest.Hosts() {
		if h.MPS == nil {
			continue
		}
		for _, d := range h.MPS.Daemons {
			for _, text := range d.Texts {
				f.Add(text)
			}
		}
	}
	f.Add("GPU\nGPU-1 - 1 2 3 4 -\nPID ID SERVER DEVICE NAMESPACE\n1 2 3 4 5")
	f.Add("Device Ordinal,PCI IDs,UUID,Name,Attributes\n0,a,b,c,d")
	f.Fuzz(func(t *testing.T, text string) {
		rows, _ := ParsePartitions(text)
		for _, r := range rows {
			if r.GPU == "" || r.UsedChunks.Or(0) < 0 || r.UsedSMs.Or(0) < 0 {
				t.Errorf("%+v", r)
			}
		}
		ParseVersion(text)
		ParseProcesses(text)
		ParseDeviceQuery(text)
		ParseV3Servers(text)
		if pids, ok := ParseServerList(text); ok {
			for _, p := range pids {
				if p <= 0 {
					t.Errorf("pid %d", p)
				}
			}
		}
		if v, ok := ParsePercentage(text); ok && !(v >= 0 && v <= 100) {
			t.Errorf("%v", v)
		}
		modeOf(strings.Fields(text), text)
	})
}

// stat's name may hold brackets and spaces.
func TestStat(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string][2]string{
		"12 (nvidia-cuda-mps) S 1 12": {"nvidia-cuda-mps", "S"},
		"12 (a) b) (c) Z 1 12":        {"a) b) (c", "Z"},
		"12 (":                        {"", ""},
		"":                            {"", ""},
		"12 (x)":                      {"x", ""},
	} {
		if err := os.WriteFile(dir+"/stat", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if name, state, _ := stat(dir); name != want[0] || state != want[1] {
			t.Errorf("%q: %q %q", text, name, state)
		}
	}
}
