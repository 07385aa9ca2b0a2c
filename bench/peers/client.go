package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// report is what a client says of a run. Nil is what it doesn't say.
type report struct {
	good, bad                int64
	rate, ttft, latency, itl *float64 // per second, ms
	tokens                   *float64 // of output, over good requests
	cpu                      *float64 // s of the client's processes
	note                     string
}

// target is an endpoint to run against.
type target struct {
	url, model string
	requests   int
	prompts    prompts
	seconds    int // the client is stopped after so many
}

type client interface {
	name() string
	// run drives the target, writing into dir, and reads what the client has written.
	run(t target, dir string) (report, error)
}

// prompts are files with the same prompts in the form that each client reads.
type prompts struct{ cotenant, aiperf, guidellm string }

const answerTokens = 8

// writePrompts writes generated tasks, base and question as one user message.
func writePrompts(dir string, n, base int) (prompts, error) {
	w, err := loadgen.New(loadgen.Options{Seed: 1, BaseTokens: base})
	if err != nil {
		return prompts{}, err
	}
	p := prompts{filepath.Join(dir, "cotenant.jsonl"), filepath.Join(dir, "aiperf.jsonl"), filepath.Join(dir, "guidellm.jsonl")}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return prompts{}, err
	}
	var files [3][]byte
	for i := range n {
		t := w.Task(int64(i))
		text := t.Messages[0].Content + "\n" + t.Messages[1].Content
		for k, line := range []map[string]any{{"prompt": text, "expect": t.Expect}, {"text": text, "output_length": answerTokens}, {"prompt": text, "output_tokens_count": answerTokens}} {
			b, err := json.Marshal(line)
			if err != nil {
				return prompts{}, err
			}
			files[k] = append(append(files[k], b...), '\n')
		}
	}
	for k, path := range []string{p.cotenant, p.aiperf, p.guidellm} {
		if err := os.WriteFile(path, files[k], 0o644); err != nil {
			return prompts{}, err
		}
	}
	return p, nil
}

// execute runs a client's program in dir, its output in a log there, and returns its CPU seconds. An exit code other than 0 isn't an
// error: some clients end so when requests fail.
func execute(dir string, seconds int, name string, args ...string) (*float64, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := time.AfterFunc(time.Duration(seconds)*time.Second, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	cmd.Wait()
	if !stop.Stop() {
		return nil, fmt.Errorf("it took more than %d s; see %s", seconds, log.Name())
	}
	used := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return &used, nil
}

type cotenantClient struct{ o options }

func (cotenantClient) name() string { return "cotenant soak" }

func (c cotenantClient) run(t target, dir string) (report, error) {
	out := filepath.Join(dir, "run")
	cpu, err := execute(dir, t.seconds, c.o.cotenant, "soak", "--endpoint", t.url, "--model", t.model, "--contexts", strconv.Itoa(t.requests), "--workers", "4",
		"--prompts", t.prompts.cotenant, "--body-json", `{"ignore_eos":true}`, "--out", out, "--gpu", "none")
	if err != nil {
		return report{}, err
	}
	b, err := os.ReadFile(filepath.Join(out, ledger.LedgerFile))
	if err != nil {
		return report{note: "no ledger: " + lastLine(filepath.Join(dir, "log")), cpu: cpu}, nil
	}
	l, err := ledger.ReadLedger(b)
	if err != nil {
		return report{}, err
	}
	r := report{good: l.Counts.Turns, bad: l.Counts.Failed, cpu: cpu}
	if v, ok := l.Rates.ResultsPer1e6s.Get(); ok {
		r.rate = some(float64(v) / 1e6)
	}
	r.ttft, r.latency, r.itl = ms(l.Times.TTFT.P50.ValueUS), ms(l.Times.Latency.P50.ValueUS), ms(l.Times.InterToken.P50.ValueUS)
	if l.Counts.UsageResponses > 0 {
		r.tokens = some(float64(l.Tokens.Completion))
	}
	if l.Counts.Buffered > 0 {
		r.note = fmt.Sprintf("%d in one piece", l.Counts.Buffered)
	}
	for _, o := range l.Counts.Outcomes {
		if o.Outcome != ledger.OK {
			r.note = join(r.note, fmt.Sprintf("%d %s", o.Count, o.Outcome))
		}
	}
	if l.Counts.UsageMissing > 0 {
		r.note = join(r.note, fmt.Sprintf("%d without usage", l.Counts.UsageMissing))
	}
	return r, nil
}

type aiperfClient struct{ o options }

func (aiperfClient) name() string { return "AIPerf" }

func (c aiperfClient) run(t target, dir string) (report, error) {
	cpu, err := execute(dir, t.seconds, filepath.Join(c.o.tools, "aiperf"), "profile", "-m", t.model, "-u", t.url, "--endpoint-type", "chat", "--streaming",
		"--tokenizer", c.o.tokenizer, "--concurrency", "4", "--request-rate", "200", "--arrival-pattern", "constant", "--connection-reuse-strategy", "never",
		"--request-count", strconv.Itoa(t.requests), "--input-file", t.prompts.aiperf, "--custom-dataset-type", "single_turn",
		"--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0", "--use-server-token-count",
		"--random-seed", "1", "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", filepath.Join(dir, "out"))
	if err != nil {
		return report{}, err
	}
	r := report{cpu: cpu}
	type metric struct{ Avg, P50, Sum *float64 }
	var doc struct {
		Good    *metric `json:"request_count"`
		Bad     *metric `json:"error_request_count"`
		Rate    *metric `json:"request_throughput"`
		TTFT    *metric `json:"time_to_first_token"`
		Latency *metric `json:"request_latency"`
		ITL     *metric `json:"inter_token_latency"`
		Tokens  *metric `json:"total_output_tokens"`
		Length  *metric `json:"output_sequence_length"`
	}
	b, err := os.ReadFile(filepath.Join(dir, "out", "profile_export_aiperf.json"))
	if err != nil {
		return report{note: "no summary file", bad: int64(t.requests), cpu: cpu}, nil
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return report{}, fmt.Errorf("reading AIPerf's summary: %w", err)
	}
	avg := func(m *metric) *float64 {
		if m == nil {
			return nil
		}
		return m.Avg
	}
	p50 := func(m *metric) *float64 {
		if m == nil {
			return nil
		}
		return m.P50
	}
	if v := avg(doc.Good); v != nil {
		r.good = int64(*v)
	}
	if v := avg(doc.Bad); v != nil {
		r.bad = int64(*v)
	}
	r.rate, r.ttft, r.latency, r.itl, r.tokens = avg(doc.Rate), p50(doc.TTFT), p50(doc.Latency), p50(doc.ITL), avg(doc.Tokens)
	if v := avg(doc.Length); r.tokens == nil && v != nil {
		r.tokens = some(*v * float64(r.good))
	}
	return r, nil
}

type guidellmClient struct{ o options }

func (guidellmClient) name() string { return "GuideLLM" }

func (c guidellmClient) run(t target, dir string) (report, error) {
	file := filepath.Join(dir, "benchmarks.json")
	cpu, err := execute(dir, t.seconds, filepath.Join(c.o.tools, "guidellm"), "run",
		"--backend", fmt.Sprintf(`kind=openai_http,target=%s,model=%s,extras={"body":{"temperature":0}}`, t.url, t.model),
		"--profile", "kind=concurrent,streams=4", "--constraint", fmt.Sprintf("kind=max_requests,count=%d", t.requests),
		"--data", "kind=json_file,path="+t.prompts.guidellm, "--output", "kind=json,path="+file, "--disable-progress")
	if err != nil {
		return report{}, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return report{note: "no report: " + lastLine(filepath.Join(dir, "log")), cpu: cpu}, nil
	}
	type metric struct {
		Successful struct {
			Mean        *float64 `json:"mean"`
			TotalSum    *float64 `json:"total_sum"`
			Percentiles struct {
				P50 *float64 `json:"p50"`
			} `json:"percentiles"`
		} `json:"successful"`
	}
	var doc struct {
		Benchmarks []struct {
			Metrics struct {
				Totals struct {
					Successful int64 `json:"successful"`
					Errored    int64 `json:"errored"`
				} `json:"request_totals"`
				Rate    metric `json:"requests_per_second"`
				TTFT    metric `json:"time_to_first_token_ms"`
				Latency metric `json:"request_latency"`
				ITL     metric `json:"inter_token_latency_ms"`
				Tokens  metric `json:"output_token_count"`
			} `json:"metrics"`
		} `json:"benchmarks"`
	}
	if err := json.Unmarshal(b, &doc); err != nil || len(doc.Benchmarks) == 0 {
		return report{}, fmt.Errorf("reading GuideLLM's report: %v", err)
	}
	m := doc.Benchmarks[0].Metrics
	r := report{good: m.Totals.Successful, bad: m.Totals.Errored, rate: m.Rate.Successful.Mean, ttft: m.TTFT.Successful.Percentiles.P50,
		itl: m.ITL.Successful.Percentiles.P50, tokens: m.Tokens.Successful.TotalSum, cpu: cpu}
	if v := m.Latency.Successful.Percentiles.P50; v != nil {
		r.latency = some(*v * 1000)
	}
	return r, nil
}

func some(v float64) *float64 { return &v }

func ms(o ledger.Opt) *float64 {
	if v, ok := o.Get(); ok {
		return some(float64(v) / 1000)
	}
	return nil
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

func spread(values []float64) (lo, mid, hi float64) {
	slices.Sort(values)
	n := len(values)
	return values[0], (values[(n-1)/2] + values[n/2]) / 2, values[n-1]
}

func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	end := len(b)
	for end > 0 && b[end-1] == '\n' {
		end--
	}
	start := end
	for start > 0 && b[start-1] != '\n' && end-start < 160 {
		start--
	}
	return string(b[start:end])
}

// onLlama runs a client on a llama-server of its own.
func onLlama(o options, c client, p prompts, dir string) (report, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return report{}, err
	}
	address := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(address)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return report{}, err
	}
	log, err := os.Create(filepath.Join(dir, "llama.log"))
	if err != nil {
		return report{}, err
	}
	defer log.Close()
	cmd := exec.Command(o.llama, "-m", o.model, "-a", "smollm2", "-t", strconv.Itoa(o.threads), "-np", "4", "-c", "8192", "--host", "127.0.0.1", "--port", port, "--metrics")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return report{}, err
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	if err := waitHealthy("http://" + address + "/health"); err != nil {
		return report{}, err
	}
	return c.run(target{url: "http://" + address, model: "smollm2", requests: o.requests, prompts: p, seconds: 900}, dir)
}
