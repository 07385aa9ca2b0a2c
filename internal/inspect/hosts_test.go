package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/dl"
	"cotenant/internal/gputest"
	"cotenant/internal/observe"
	"cotenant/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden reports")

// slow are the hosts on which something hangs, so that the deadline is reached.
var slow = []string{"cuinit-hung", "mps-control-hung", "nvml-hung", "nvml-hung-late", "smi-grandchild", "smi-uninterruptible"}

const slowTimeout = 10 * time.Second

// played is what came of one host.
type played struct {
	host    gputest.Host
	machine *gputest.Machine
	facts   *Facts
	wall    time.Duration
}

// gather plays a host through the fake driver and programs, and takes out of the facts what is the test machine's own.
func gather(m *gputest.Machine, o Options) played {
	o.Root, o.Env = m.Root, m.Env
	start := time.Now()
	f := Gather(context.Background(), o)
	wall := time.Since(start)
	f.Program, f.UserID = Program{Version: "test", OS: "linux", Arch: "amd64"}, 0
	for i := range f.MPS.Folders {
		if f.MPS.Folders[i].Owner.OK() {
			f.MPS.Folders[i].Owner = observe.Got("stat", 0)
		}
	}
	return played{m.Host, m, f, wall}
}

func needLibraries(t testing.TB) {
	if err := dl.Available(); err != nil {
		t.Skip(err) // no such library can be opened on this platform: nothing is missing
	}
	testenv.Need(t, "gcc", "install gcc: the fake driver is a real library")
}

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", "hosts", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}

// narrow indents a document by one space a level: there are many golden reports.
func narrow(t *testing.T, doc []byte) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", " "); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// goldenName names a host's golden files: root reads what other users may not.
func goldenName(h gputest.Host) string {
	if h.MPS != nil && os.Geteuid() == 0 {
		for _, d := range h.MPS.Daemons {
			if d.DenyEnviron {
				return h.Name + ".root"
			}
		}
	}
	return h.Name
}

// Every host gives the report and the table that were agreed on, twice the same, and nothing mutating was asked.
func TestHosts(t *testing.T) {
	needLibraries(t)
	hosts := gputest.Hosts()
	if len(hosts) < 40 {
		t.Fatalf("%d hosts", len(hosts))
	}
	if raced {
		hosts = slices.DeleteFunc(hosts, func(h gputest.Host) bool { return len(h.Name)%4 != 0 && !slices.Contains(slow, h.Name) })
	}
	all := make([]played, len(hosts))
	tokens := make(chan struct{}, 2*runtime.NumCPU())
	var wait sync.WaitGroup
	// All programs are written before any is run: a fork in between would make a script's file busy.
	machines := make([]*gputest.Machine, len(hosts))
	for i, h := range hosts {
		machines[i] = gputest.Start(t, h)
	}
	play := func(i int, timeout time.Duration) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			tokens <- struct{}{}
			defer func() { <-tokens }()
			h := hosts[i]
			all[i] = gather(machines[i], Options{Timeout: timeout, MPSPartitions: h.MPS != nil && len(h.MPS.Daemons) > 0})
		}()
	}
	for i, h := range hosts {
		if !slices.Contains(slow, h.Name) {
			play(i, MaxTimeout)
		}
	}
	wait.Wait()
	// Those that wait for a deadline wait together, with the machine to themselves.
	tokens = make(chan struct{}, len(slow))
	for i, h := range hosts {
		if slices.Contains(slow, h.Name) {
			play(i, slowTimeout)
		}
	}
	wait.Wait()
	for _, p := range all {
		t.Run(p.host.Name, func(t *testing.T) {
			if slices.Contains(slow, p.host.Name) && p.wall > slowTimeout+20*time.Second {
				t.Errorf("came back after %v, the deadline was %v", p.wall, slowTimeout)
			}
			if got := p.machine.Mutations(); len(got) > 0 {
				t.Errorf("mutating calls or inputs: %q", got)
			}
			report := Judge(p.facts)
			checkReport(t, report)
			var doc, again, table bytes.Buffer
			if err := report.WriteJSON(&doc); err != nil {
				t.Fatal(err)
			}
			if err := report.WriteTable(&table); err != nil {
				t.Fatal(err)
			}
			if err := Judge(p.facts).WriteJSON(&again); err != nil || !bytes.Equal(doc.Bytes(), again.Bytes()) {
				t.Errorf("Judge isn't pure: %s", cmp.Diff(doc.String(), again.String()))
			}
			strip := func(b []byte) []byte { return []byte(p.machine.Strip(string(b))) }
			name := goldenName(p.host)
			golden(t, name+".json", strip(narrow(t, doc.Bytes())))
			checkLabels(t, report)
			golden(t, name+".txt", append([]byte("# "+p.host.Note+"\n"), strip(table.Bytes())...))
		})
	}
}

// checkReport holds any report against the rules that every report keeps.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	evidence := func(where string, list []Evidence) {
		for _, e := range list {
			if len(e.Text) > observe.MaxText || len(e.Call) > observe.MaxText || strings.ContainsAny(e.Text, "\n\x00") {
				t.Errorf("%s: evidence %+v", where, e)
			}
		}
	}
	if r.SchemaVersion != 1 || r.Operation != "gpu_sharing_inspect" || r.MutatedState {
		t.Errorf("head %d %q %v", r.SchemaVersion, r.Operation, r.MutatedState)
	}
	for name, s := range r.Sources {
		if !s.Status.Valid() || (s.Status != observe.SupportedProven && s.Reason == "") {
			t.Errorf("source %s: status %q, reason %q", name, s.Status, s.Reason)
		}
		evidence(name, s.Evidence)
	}
	for _, g := range r.GPUs {
		for _, m := range Mechanisms() {
			v, ok := g.Mechanisms[m]
			where := g.UUID + " " + m
			supported := v.Status == observe.SupportedDeclared || v.Status == observe.SupportedProven
			switch {
			case !ok || !v.Status.Valid():
				t.Errorf("%s: status %q", where, v.Status)
			case v.Reason == "" || v.Floor == "" || v.Limitation == "":
				t.Errorf("%s: reason, floor or limitation missing: %+v", where, v)
			case supported == (v.Next != ""):
				t.Errorf("%s: %s, next %q", where, v.Status, v.Next)
			case supported && len(v.Evidence) == 0:
				t.Errorf("%s: %s without evidence", where, v.Status)
			case v.Status == observe.SupportedProven && slices.Contains([]string{GreenContexts, Workqueues, Heterogeneous, TimeSlicing}, m):
				t.Errorf("%s: an inspection proves none of it", where)
			}
			evidence(where, v.Evidence)
		}
	}
	for _, f := range r.Findings {
		evidence(f.ID, f.Evidence)
		if f.Text == "" || f.Next == "" {
			t.Errorf("finding %+v", f)
		}
	}
}

var label = regexp.MustCompile(`^feature\.node\.kubernetes\.io/cotenant-[a-z0-9.-]{1,50}=[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// checkLabels holds the labels of a report against what Kubernetes accepts.
func checkLabels(t *testing.T, r *Report) {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteNFD(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for _, line := range lines {
		if !label.MatchString(line) {
			t.Errorf("label %q", line)
		}
	}
	if want := 2 * len(Mechanisms()); len(r.GPUs) > 0 && len(lines) < want {
		t.Errorf("%d labels, want at least %d", len(lines), want)
	}
}
