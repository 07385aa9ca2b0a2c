package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/soak"
	"cotenant/internal/verify"
)

const jobWorkers = 4

// mainJobs soaks both servers, started afresh for each run, with a shared base and with unique prompts.
func mainJobs(o options) ([]row, []string, error) {
	var rows []row
	var notes []string
	for _, j := range []struct {
		name     string
		unique   bool
		contexts int64
		goal     float64
	}{{"main job, shared base of 690", false, o.shared, 2}, {"main job, unique prompts", true, o.unique, 1}} {
		all := row{name: j.name, unit: "results/s", goal: j.goal}
		warm := row{name: j.name + ", without the first 4", unit: "results/s", goal: j.goal}
		var hwm []float64
		for n := range o.repeats {
			for _, ours := range []bool{true, false} {
				r, err := job(o, ours, j.unique, j.contexts, n)
				if err != nil {
					return nil, nil, fmt.Errorf("%s: %w", j.name, err)
				}
				if ours {
					all.ours, warm.ours = append(all.ours, r.rate), append(warm.ours, r.warm)
					hwm = append(hwm, r.hwmMiB)
				} else {
					all.theirs, warm.theirs = append(all.theirs, r.rate), append(warm.theirs, r.warm)
				}
				fmt.Fprintf(os.Stderr, "%s, ours %t: %.2f results/s, warm %.2f, VmHWM %.0f MiB, oracle %d of %d\n",
					j.name, ours, r.rate, r.warm, r.hwmMiB, r.passed, r.checked)
			}
		}
		rows = append(rows, all, warm)
		notes = append(notes, fmt.Sprintf("%s: VmHWM of `cotenant serve` %s MiB", j.name, spread(hwm)))
	}
	return rows, notes, nil
}

type jobResult struct {
	rate, warm      float64 // results a second
	hwmMiB          float64
	passed, checked int64
}

func job(o options, ours, unique bool, contexts int64, n int) (jobResult, error) {
	port, err := freePort()
	if err != nil {
		return jobResult{}, err
	}
	address := "127.0.0.1:" + port
	cmd := exec.Command(o.cotenant, "serve", "--model", o.model, "--listen", address, "--threads", strconv.Itoa(o.threads), "--max-seqs", strconv.Itoa(jobWorkers))
	if !ours {
		cmd = exec.Command(filepath.Join(o.llama, "llama-server"), "-m", o.model, "-t", strconv.Itoa(o.threads), "-np", strconv.Itoa(jobWorkers),
			"-c", "8192", "--host", "127.0.0.1", "--port", port, "--metrics")
	}
	if err := cmd.Start(); err != nil {
		return jobResult{}, err
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	if err := waitForPort(address); err != nil {
		return jobResult{}, err
	}
	w, err := loadgen.New(loadgen.Options{Seed: 1, Unique: unique})
	if err != nil {
		return jobResult{}, err
	}
	res, err := soak.Run(context.Background(), soak.Options{
		Endpoint: "http://" + address, Contexts: contexts, Workers: jobWorkers,
		Out:    filepath.Join(o.scratch, fmt.Sprintf("ours-%t-unique-%t-%d", ours, unique, n)),
		Source: w, Workload: soak.WorkloadInfo{Seed: "1", BaseTokens: ledger.Some(loadgen.DefaultBaseTokens), Unique: unique},
		ServerPID: cmd.Process.Pid, BodyJSON: []byte(`{"ignore_eos":true}`), Build: soak.BuildInfo("bench"), RulesVersion: verify.RulesVersion,
	})
	if err != nil {
		return jobResult{}, err
	}
	l := &res.Ledger
	if l.Counts.Failed > 0 {
		return jobResult{}, fmt.Errorf("%d of %d requests failed", l.Counts.Failed, l.Counts.Submitted)
	}
	r := jobResult{rate: float64(l.Rates.ResultsPer1e6s.V) / 1e6, warm: float64(l.Rates.WarmResultsPer1e6s.V) / 1e6,
		passed: l.Oracle.Passed, checked: l.Oracle.Checked}
	r.hwmMiB, err = highWater(cmd.Process.Pid)
	return r, err
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func waitForPort(address string) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			return c.Close()
		}
	}
	return fmt.Errorf("nothing listens on %s after a minute", address)
}

// highWater reads VmHWM, which /proc gives in KiB.
func highWater(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d shows no VmHWM", pid)
}
