package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"cotenant/internal/ledger"
)

type binaries struct{ cotenant, null string }

func build(dir string) (binaries, error) {
	b := binaries{filepath.Join(dir, "cotenant"), filepath.Join(dir, "null")}
	for path, pkg := range map[string]string{b.cotenant: "./cmd/cotenant", b.null: "./bench/null"} {
		cmd := exec.Command("go", "build", "-o", path, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return b, fmt.Errorf("building %s (from the repository's root?): %w\n%s", pkg, err, out)
		}
	}
	return b, nil
}

// result is one rung in one mode.
type result struct {
	mode                 string
	contexts, workers    int64
	cores                int64
	rate                 float64 // contexts a second of the run's wall time
	clientCPU, serverCPU float64 // µs a context; the client's is of its whole process
	others               float64 // cores that everything else had
	hwm, peak            int64   // bytes: VmHWM at the last sample; of the process from its start to its end
	rowBytes             int64
	connections          int64
	slotLag              int64 // µs, p50
	verifySeconds        float64
	verifyPeak           int64
	holds                bool
	why                  string
}

// endpoint starts bench/null and returns its address.
func endpoint(bin, mode string) (*exec.Cmd, string, error) {
	cmd := exec.Command(bin, "--listen", "127.0.0.1:0")
	if mode == modeFlush {
		cmd.Args = append(cmd.Args, "--flush")
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, "", fmt.Errorf("the endpoint didn't start: %w", err)
	}
	return cmd, strings.TrimSpace(url), nil
}

func stop(cmd *exec.Cmd) {
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
}

// step soaks one rung and verifies it.
func step(o options, bins binaries, mode string, contexts int64) (result, error) {
	r := result{mode: mode, contexts: contexts, workers: o.workers}
	null, url, err := endpoint(bins.null, mode)
	if err != nil {
		return r, err
	}
	defer stop(null)
	dir := filepath.Join(o.scratch, fmt.Sprintf("%s-%d", mode, contexts))
	if o.keep == "" {
		defer os.RemoveAll(dir)
	}
	soak := exec.Command(bins.cotenant, "soak", "--endpoint", url, "--contract", ledger.ContractOrchestration, "--contexts", strconv.FormatInt(contexts, 10),
		"--workers", strconv.FormatInt(o.workers, 10), "--out", dir, "--json")
	usage, text, soakErr := measured(soak)
	b, err := os.ReadFile(filepath.Join(dir, ledger.LedgerFile))
	if err != nil {
		return r, fmt.Errorf("%w: %w\n%s", soakErr, err, text)
	}
	l, err := ledger.ReadLedger(b)
	if err != nil {
		return r, err
	}
	r.take(&l, usage)
	if r.why = strings.Join(l.Admission.Why, ", "); r.why == ledger.WhyNotARung {
		r.why = "" // any number may be measured
	}
	verify := exec.Command(bins.cotenant, "verify", dir)
	verdict, text, verifyErr := measured(verify)
	r.verifySeconds, r.verifyPeak = seconds(verdict), verdict.Maxrss<<10
	if verifyErr != nil && l.Admission.Admitted {
		r.why = "not verified: " + text
	}
	r.holds = r.why == ""
	return r, nil
}

// measured runs a command and returns what it took and what it said on stderr.
func measured(cmd *exec.Cmd) (*syscall.Rusage, string, error) {
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &text
	err := cmd.Run()
	usage := &syscall.Rusage{}
	if cmd.ProcessState != nil {
		usage = cmd.ProcessState.SysUsage().(*syscall.Rusage)
	}
	return usage, text.String(), err
}

func seconds(u *syscall.Rusage) float64 {
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func (r *result) take(l *ledger.Ledger, u *syscall.Rusage) {
	n := float64(l.Counts.Completed)
	r.cores = l.Client.CPUs
	r.rate = n * 1e6 / float64(l.WallUS)
	r.clientCPU, r.serverCPU = seconds(u)*1e6/n, float64(l.Samples.ServerCPUUS.V)/n
	r.others = float64(l.Samples.OtherCPUUS.V) / float64(l.Samples.SpanUS)
	r.hwm, r.peak = l.Peaks.ClientHWMBytes.V, u.Maxrss<<10
	r.rowBytes = l.Files[1].Bytes
	r.connections = l.Counts.Attempts - l.Counts.ConnReused
	r.slotLag = l.Times.SlotLag.P50.ValueUS.V
}

func printHead() {
	fmt.Println("| endpoint writes | contexts | workers | contexts/s | client's peak, MB: running / whole | CPU a context, µs: client / endpoint | slot lag p50, µs | connections | others, cores | rows, MB | verify: CPU s / peak MB |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|")
}

func (r *result) print() {
	mb := func(n int64) float64 { return float64(n) / 1e6 }
	fmt.Printf("| %s | %d | %d | **%.0f** | %.1f / %.1f | %.0f / %.0f | %d | %d | %.2f | %.1f | %.1f / %.1f |\n", r.mode, r.contexts, r.workers, r.rate,
		mb(r.hwm), mb(r.peak), r.clientCPU, r.serverCPU, r.slotLag, r.connections, r.others, mb(r.rowBytes), r.verifySeconds, mb(r.verifyPeak))
	if r.why != "" {
		fmt.Fprintf(os.Stderr, "%d contexts, %s: %s\n", r.contexts, r.mode, r.why)
	}
}

func machine() string {
	model := "processor unknown"
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d processors, kernel %s, %s", model, runtime.NumCPU(), strings.TrimSpace(string(kernel)), runtime.Version())
}

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(b))
	if len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
