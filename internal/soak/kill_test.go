package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/nvml"
)

// childRun is a run that another process makes.
type childRun struct {
	Endpoint, Contract, Out string
	Contexts                int64
	Resume                  bool
}

const childVariable = "COTENANT_SOAK_CHILD"

func TestMain(m *testing.M) {
	bounded.ServeChild(nvml.Tasks())
	if text := os.Getenv(gpuChildVariable); text != "" {
		os.Exit(gpuChild(text))
	}
	if text := os.Getenv(childVariable); text != "" {
		os.Exit(child(text))
	}
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

func child(text string) int {
	var c childRun
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return ExitFailed
	}
	w, err := loadgen.New(loadgen.Options{Seed: 1, BaseTokens: 160})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return ExitFailed
	}
	o := Options{Endpoint: c.Endpoint, Model: "m", Contract: c.Contract, Contexts: c.Contexts, Workers: 4, Out: c.Out, Resume: c.Resume, Source: w,
		FaultBlock: 8, Workload: WorkloadInfo{Seed: "1", BaseTokens: ledger.Some(160)}, RulesVersion: 1,
		Build: ledger.Build{Version: "test", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: int64(runtime.NumCPU())}} // unhashed: a hundred processes would hash
	o.Timeouts.Idle = time.Second // of a stalled stream; a busy machine keeps the others waiting too
	res, err := Run(context.Background(), o)
	code := ExitCode(res, err)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// victim is an endpoint that says when it has been asked so often.
type victim struct {
	counted
	served, target atomic.Int64
	reached        chan struct{}
}

func (v *victim) answer(w *reply) {
	if v.served.Add(1) == v.target.Load() {
		select {
		case v.reached <- struct{}{}:
		default:
		}
	}
	v.counted.serve(w)
}

// runOnce starts a process that makes c or goes on with it, and kills it at a random moment: after so many requests, and up to 20 ms later.
// It reports whether the process was killed before it had ended, and its exit code otherwise.
func (v *victim) runOnce(t *testing.T, r *rand.Rand, c childRun) (killed bool, code int) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	var said strings.Builder
	cmd.Stderr = &said
	select {
	case <-v.reached:
	default:
	}
	v.target.Store(v.served.Load() + 1 + r.Int64N(70))
	early := r.IntN(5) == 0 // in the first moments, before any request
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	moment := time.Duration(r.Int64N(int64(20 * time.Millisecond)))
	if early {
		moment *= 4
		select {
		case <-time.After(moment):
		case err = <-ended:
			ended <- err
		}
	} else {
		select {
		case <-v.reached:
			time.Sleep(moment)
		case err = <-ended:
			ended <- err
		}
	}
	cmd.Process.Kill()
	err = <-ended
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		return true, 0
	}
	if code = cmd.ProcessState.ExitCode(); code != ExitAdmitted && code != ExitNotAdmitted {
		t.Fatalf("exit code %d of %+v: %s", code, c, said.String())
	}
	return false, code
}

// TestKilledAtRandomPoints kills runs a hundred times. Each goes on until it is finished, and then each turn of each context has exactly
// one result, what was sent again is declared, and every rule of the verifier holds.
func TestKilledAtRandomPoints(t *testing.T) {
	t.Parallel()
	const kills = 100
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	v := &victim{reached: make(chan struct{}, 1)}
	v.first, v.gap = 4*time.Millisecond, time.Millisecond
	v.endpoint.answer = v.answer
	url := v.start(t)
	killed, runs, resent, across := 0, 0, int64(0), int64(0)
	for ; killed < kills; runs++ {
		c := childRun{Endpoint: url, Contract: ledger.ContractPlain, Contexts: 100, Out: filepath.Join(t.TempDir(), "run")}
		switch runs % 3 {
		case 1:
			c.Contract, c.Contexts = ledger.ContractControlled, 64
		case 2:
			c.Contract = ledger.ContractOrchestration
		}
		of := 0
		for {
			dead, _ := v.runOnce(t, r, c)
			if !dead {
				break
			}
			killed, of = killed+1, of+1
			// What had been made so far is gone on with; a folder that wasn't made is begun.
			_, err := os.Stat(c.Out)
			c.Resume = err == nil
		}
		l := v.check(t, c, of)
		resent, across = resent+l.Counts.Resent, across+restoredAcross(&l)
	}
	t.Logf("%d kills over %d runs: %d attempts were sent again, %d conversations were brought back by another process", killed, runs, resent, across)
	if resent == 0 || across == 0 {
		t.Error("no kill met an open attempt, or none a parked conversation")
	}
}

func restoredAcross(l *ledger.Ledger) int64 {
	if l.Controlled == nil {
		return 0
	}
	return l.Controlled.RestoredAcross
}

// check holds a finished run that was killed so often.
func (v *victim) check(t *testing.T, c childRun, kills int) ledger.Ledger {
	t.Helper()
	turns, want := int64(1), ""
	if c.Contract != ledger.ContractPlain { // whose rungs take too long here
		want = "R-RUNG-01"
	}
	if c.Contract == ledger.ContractControlled {
		turns = 2
	}
	if failed := failedRules(t, c.Out); failed != want {
		t.Errorf("%s, killed %d times: rules that fail: %s", c.Contract, kills, failed)
	}
	results := map[[2]int64]int{}
	rows := rowsOf(t, c.Out)
	for _, r := range rows {
		if r.Outcome == ledger.OK {
			results[[2]int64{r.Context, r.Turn}]++
		}
	}
	for n := range c.Contexts {
		for turn := range turns {
			if got := results[[2]int64{n, turn}]; got != 1 {
				t.Errorf("context %d, turn %d has %d results", n, turn, got)
			}
		}
	}
	l := summary(t, c.Out)
	if l.Counts.Completed != c.Contexts || l.Counts.Turns != c.Contexts*turns || l.Counts.Duplicates != 0 || l.Counts.Strays != 0 || l.Status != ledger.StatusFinished {
		t.Errorf("%s, killed %d times: %s, %+v", c.Contract, kills, l.Status, l.Counts)
	}
	if l.Counts.Resent > int64(kills)*l.Workers {
		t.Errorf("%d attempts were sent again after %d kills of %d workers", l.Counts.Resent, kills, l.Workers)
	}
	if k := l.Controlled; k != nil && (k.Restored != c.Contexts || k.Parked != c.Contexts || k.FaultContexts != c.Contexts/8) {
		t.Errorf("controlled %+v", k)
	}
	// The server saw no more than the rows and what is declared, and nothing twice but that.
	v.endpoint.mu.Lock()
	defer v.endpoint.mu.Unlock()
	asked := int64(0)
	for _, b := range v.endpoint.bodies {
		if !strings.Contains(string(b), `"max_tokens":1,`) {
			asked++
		}
	}
	v.endpoint.bodies = nil
	sent := int64(0)
	for _, r := range rows {
		if r.SentUS.OK {
			sent++
		}
	}
	canaries := int64(0)
	if l.Controlled != nil {
		canaries = canaryAsked * (3 + int64(kills)*3)
	}
	if asked > sent+l.Counts.Resent+canaries {
		t.Errorf("the server was asked %d times: %d rows were sent, %d sent again are declared, at most %d were canaries", asked, sent, l.Counts.Resent, canaries)
	}
	return l
}

func summary(t testing.TB, dir string) ledger.Ledger {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, ledger.LedgerFile))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.ReadLedger(b)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
