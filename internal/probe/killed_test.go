//go:build linux

package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/gputest"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

// supervisorVariable makes this test binary a supervisor: JSON of supervisorJob.
const supervisorVariable = "PROBE_TEST_SUPERVISOR"

type supervisorJob struct {
	MPS       bool
	Root, Out string
	Env       []string
}

func serveSupervisor() {
	text := os.Getenv(supervisorVariable)
	if text == "" {
		return
	}
	var job supervisorJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		os.Exit(2)
	}
	c := Common{GPUUUID: testUUID, Confirm: true, Out: job.Out, Root: job.Root, Env: job.Env, Deadline: MaxDeadline}
	if job.MPS {
		_, _ = MPS(context.Background(), MPSOptions{Common: c})
	} else {
		_, _ = Create(context.Background(), CreateOptions{Common: c, Plan: partition.Plan{Groups: 2}, Cycles: 2000})
	}
	os.Exit(0)
}

// supervising is a probe in a process of its own.
type supervising struct {
	*exec.Cmd
	out   string        // its evidence folder
	ended chan struct{} // closed when it has ended
}

func startSupervisor(t *testing.T, m *gputest.Machine, mps bool) *supervising {
	t.Helper()
	s := &supervising{exec.Command("/proc/self/exe"), filepath.Join(t.TempDir(), "run"), make(chan struct{})}
	job, err := json.Marshal(supervisorJob{mps, m.Root, s.out, m.Env})
	if err != nil {
		t.Fatal(err)
	}
	s.Env = append(slices.Clone(m.Env), supervisorVariable+"="+string(job))
	s.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(s.ended); _ = s.Wait() }()
	t.Cleanup(s.kill)
	return s
}

func (s *supervising) kill() {
	_ = s.Process.Kill()
	<-s.ended
}

// waitFor waits until the journal holds all of the words in one line.
func (s *supervising) waitFor(t *testing.T, words ...string) {
	t.Helper()
	if err := journalSays(s.out, s.ended, words...); err != nil {
		t.Fatal(err)
	}
}

// journalSays waits until a run's journal holds all of the words in one line; ended says that nobody writes it any more.
func journalSays(folder string, ended <-chan struct{}, words ...string) error {
	var journal []byte
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		last := false
		select {
		case <-ended:
			last = true
		default:
		}
		journal, _ = os.ReadFile(filepath.Join(folder, evidence.JournalFile))
		for line := range strings.Lines(string(journal)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return nil
			}
		}
		if last {
			break
		}
	}
	return fmt.Errorf("the journal never said %v:\n%s", words, journal)
}

// killedLeavesNothing holds what a killed supervisor left against what it may: nothing, some seconds later.
func killedLeavesNothing(t *testing.T, m *gputest.Machine, out string) {
	t.Helper()
	entries, _, err := evidence.ReadJournal(out)
	if err != nil {
		t.Fatal(err)
	}
	id := entries[0].Detail["run"]
	var folder string
	for _, e := range entries {
		if e.Step == "make_private_folder" && e.Phase == evidence.Begin {
			folder = e.Detail["folder"]
		}
	}
	var pids []int
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		pids = ours(id)
		_, err := os.Stat(folder)
		held, _ := os.ReadDir(m.Path("/.fake/usage"))
		var holding []string
		for _, e := range held {
			if pid, err := strconv.Atoi(e.Name()); err == nil && alive(pid) {
				holding = append(holding, e.Name())
			}
		}
		if len(pids) == 0 && os.IsNotExist(err) && len(holding) == 0 {
			break
		}
		if time.Now().After(until) {
			var what []string
			for _, pid := range pids {
				line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
				status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
				what = append(what, strings.ReplaceAll(string(line), "\x00", " ")+"\n"+string(status[:min(len(status), 300)]))
			}
			journal, _ := os.ReadFile(filepath.Join(out, evidence.JournalFile))
			t.Fatalf("left: processes %v %s, folder %s (%v), memory of %v\n%s", pids, what, folder, err, holding, journal[max(0, len(journal)-2000):])
		}
	}
	// cleanup finds nothing more to do, and makes of what is there a folder that verifies as what it is.
	for _, confirm := range []bool{false, true} {
		r, code, err := Cleanup(context.Background(), CleanupOptions{Run: out, Confirm: confirm, Env: m.Env})
		if err != nil || code != ExitDone || len(r.Swept.Left) > 0 || r.RunID != id {
			t.Errorf("cleanup: %d, %v\n%s", code, err, dump(r))
		}
	}
	v, err := evidence.Verify(out)
	if err != nil || !v.Holds || v.Outcome != evidence.Unfinished || len(v.Establishes) > 0 {
		t.Errorf("%v, %s", err, dump(v))
	}
}

// The supervisor is killed with SIGKILL while its worker is at each kind of step: worker and guard end everything by themselves.
func TestSupervisorKilled(t *testing.T) {
	for _, symbol := range []string{"", "cuDevicePrimaryCtxRetain", "cuModuleLoadDataEx", "cuMemAlloc_v2", "cuGreenCtxCreate", "cuGreenCtxStreamCreate",
		"cuLaunchKernel", "cuMemcpyDtoH_v2", "cuStreamDestroy_v2", "cuGreenCtxDestroy", "cuDevicePrimaryCtxRelease_v2"} {
		t.Run("at-"+symbol, func(t *testing.T) {
			t.Parallel()
			var faults []gputest.Fault
			words := []string{`"step":"cycle"`}
			if symbol != "" {
				faults = []gputest.Fault{{Symbol: symbol, Call: 1, Action: gputest.Hang}}
				words = []string{`"by":"worker"`}
			}
			m := gputest.Start(t, testHost(withFaults(faults...)))
			s := startSupervisor(t, m, false)
			s.waitFor(t, words...)
			time.Sleep(150 * time.Millisecond)
			s.kill()
			killedLeavesNothing(t, m, s.out)
		})
	}
}

// Killed at moments that nobody chose, the supervisor's own steps among them.
func TestSupervisorKilledAnywhere(t *testing.T) {
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			m := gputest.Start(t, testHost())
			s := startSupervisor(t, m, false)
			s.waitFor(t, `"step":"run"`)
			time.Sleep(time.Duration(i) * 17 * time.Millisecond)
			s.kill()
			killedLeavesNothing(t, m, s.out)
		})
	}
}

// The supervisor of an MPS probe is killed while clients run: daemon, server, clients and folder go.
func TestMPSSupervisorKilled(t *testing.T) {
	for name, words := range map[string][]string{"daemon": {`"start_mps_daemon"`, `"end"`}, "client": {`"by":"client"`, `"launch"`}, "second client": {`"by":"client"`, `"client":"greedy"`}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := gputest.Start(t, testHost(withMPS(13000)))
			s := startSupervisor(t, m, true)
			s.waitFor(t, words...)
			s.kill()
			killedLeavesNothing(t, m, s.out)
		})
	}
}

// Where the guard is killed too, cleanup does what it would have done, and touches nothing else.
func TestCleanupAfterGuard(t *testing.T) {
	m := gputest.Start(t, testHost(withMPS(13000)))
	s := startSupervisor(t, m, true)
	s.waitFor(t, `"by":"client"`, `"launch"`)
	if _, code, err := Cleanup(context.Background(), CleanupOptions{Run: s.out, Confirm: true, Env: m.Env}); code != ExitNo || err == nil {
		t.Errorf("cleanup of a run that goes on: %d, %v", code, err)
	}
	for _, pid := range guards(s.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	s.kill()
	bystander := exec.Command("sleep", "60")
	bystander.Env = append(os.Environ(), RunVariable+"=20260101T000000Z-0123456789abcdef")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
	killed := time.Now()
	r, code, err := Cleanup(context.Background(), CleanupOptions{Run: s.out, Env: m.Env})
	if err != nil || code != ExitDone || len(r.Swept.Folders) != 1 || r.Swept.Folders[0].Removed != "would be removed" || len(r.Unfinished) == 0 {
		t.Errorf("preview: %d, %v\n%s", code, err, dump(r))
	}
	r, code, err = Cleanup(context.Background(), CleanupOptions{Run: s.out, Confirm: true, Env: m.Env})
	if err != nil || code != ExitDone || len(r.Swept.Left) > 0 || r.Swept.Folders[0].Removed != "removed" {
		t.Errorf("cleanup: %d, %v\n%s", code, err, dump(r))
	}
	t.Logf("cleaned %v after: %s", time.Since(killed), dump(r.Swept))
	if !alive(bystander.Process.Pid) {
		t.Error("a process of another run was ended")
	}
	if v, err := evidence.Verify(s.out); err != nil || !v.Holds {
		t.Errorf("%v, %s", err, dump(v))
	}
}

// guards are the guard processes of a supervisor.
func guards(supervisor int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(supervisor) && strings.Contains(string(line), guardTask) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A process that has no environment yet, because it is replacing its program, is waited for.
func TestSweepWaitsForExec(t *testing.T) {
	id := "20260101T000000Z-0123456789abcdef"
	late := exec.Command("/bin/sh", "-c", "read line && exec /usr/bin/env "+RunVariable+"="+id+" /bin/sleep 600")
	late.Env = []string{}
	stdin, err := late.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Process.Kill() }()
	s := newSweeper(id, nil, nil)
	s.patience = time.Minute
	time.AfterFunc(50*time.Millisecond, func() { _, _ = stdin.Write([]byte("go\n")) })
	r := s.sweep(context.Background(), false)
	if len(r.Processes) != 1 || r.Processes[0].PID != late.Process.Pid || r.Processes[0].Ended != "terminated" || len(r.Left) > 0 {
		t.Errorf("%s", dump(r))
	}
	if err := late.Wait(); err == nil {
		t.Error("it ended by itself")
	}
}

// A folder that isn't marked as the run's stays, whatever a journal says of it.
func TestSweepRefusesFolders(t *testing.T) {
	id := "20260101T000000Z-0123456789abcdef"
	dir := t.TempDir()
	for name, mark := range map[string]string{"cotenant-p0123456789abcdef": "another run", "cotenant-pffffffffffffffff": id, "elsewhere0123456789abcdef": id} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, ownerFile), []byte(mark), 0o600); err != nil {
			t.Fatal(err)
		}
		entries := []evidence.Entry{{Step: "make_private_folder", Phase: evidence.Begin, Detail: map[string]string{"folder": path}}}
		r := newSweeper(id, entries, nil).sweep(context.Background(), false)
		if r.Folders[0].Removed != "not ours" {
			t.Errorf("%s: %+v", name, r)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
}

// A folder whose run ended while it was being marked is the run's: nobody else knew its name.
func TestSweepRemovesHalfMadeFolders(t *testing.T) {
	id := "20260101T000000Z-0123456789abcdef"
	for _, mark := range []string{"none", "", "20260101T0000"} {
		path := filepath.Join(t.TempDir(), "cotenant-p0123456789abcdef")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if mark != "none" {
			if err := os.WriteFile(filepath.Join(path, ownerFile), []byte(mark), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		entries := []evidence.Entry{{Step: "make_private_folder", Phase: evidence.Begin, Detail: map[string]string{"folder": path}}}
		if r := newSweeper(id, entries, nil).sweep(context.Background(), false); r.Folders[0].Removed != "removed" {
			t.Errorf("mark %q: %+v", mark, r)
		}
	}
}

// Where the journal has no answer of the engine to what it was asked to make, the sweep knows since when it may come.
func TestSweepKnowsAnUnansweredEngine(t *testing.T) {
	at := "2026-01-01T00:00:00.000000Z"
	asked := evidence.Entry{Step: "create_container", Phase: evidence.Begin, Time: at, Detail: map[string]string{"socket": "/s"}}
	answered := evidence.Entry{Step: "create_container", Phase: evidence.End, Time: at}
	if s := newSweeper("r", []evidence.Entry{asked}, nil); s.engine == nil || s.engine.Asked.Format("2006-01-02T15:04:05.000000Z") != at {
		t.Errorf("without an answer: %+v", s.engine)
	}
	if s := newSweeper("r", []evidence.Entry{asked, answered}, nil); s.engine == nil || !s.engine.Asked.IsZero() {
		t.Errorf("with an answer: %+v", s.engine)
	}
}
