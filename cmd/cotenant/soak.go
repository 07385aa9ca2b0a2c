package main

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/queue"
	"cotenant/internal/soak"
	"cotenant/internal/verify"
)

type soakFlags struct {
	opts        soak.Options
	keyFile     string
	headers     []string
	bodyJSON    string
	prompts     string
	seed        uint64
	baseTokens  int
	unique      bool
	load        soak.LoadSpec
	declared    []string
	temperature float64
	topP        float64
	sampleSeed  int64
	signKey     string
	signer      ed25519.PrivateKey // of signKey; nil: not signed
	queue       queueFlags
	asJSON      bool
}

func newSoak() *cobra.Command {
	var s soakFlags
	c := &cobra.Command{
		Use:   "soak --endpoint URL --out DIR",
		Short: "Drive an OpenAI-compatible endpoint with many logical contexts and write a ledger",
		Long: "Sends one task per logical context to an OpenAI-compatible endpoint, a bounded number at once, and writes a run folder: the\n" +
			"config before the first request, a row per attempt, samples of client and server, and a ledger that `cotenant verify`\n" +
			"computes again. Tasks come from a seed, with an oracle that knows each answer, or from --prompts.\n" +
			"--contract controlled makes a bad base fail its canary and rolls it back, does planned faults to one context of 64, parks each\n" +
			"conversation on disk between its turns, and waits for the server's gauges to come back. --contract orchestration claims\n" +
			"retirement, accounting and memory of the client, and nothing about a server.\n" +
			"--load says when contexts are sent. closed (default) keeps the workers busy; constant:RATE and poisson:RATE send so many a second,\n" +
			"busy or not; trace:FILE sends when a trace says. Several levels, as in poisson:5,10,20 or closed:1,2,4, are stages of equally many\n" +
			"contexts; LOW..HIGH[*STEPS] looks for the highest level that keeps --slo, as in poisson:2..64*20.\n" +
			"Rungs 100, 1,000, 10,000, 100,000 and 1,000,000 can be admitted; any other number runs too.\n" +
			"With --queue several processes make one run, its contexts handed out through NATS JetStream; it prints how others --join.\n" +
			"The first interrupt drains and writes the ledger; --resume goes on. A second one stops at once.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return runSoak(c, &s) },
	}
	f := c.Flags()
	f.StringVar(&s.opts.Endpoint, "endpoint", "", "base URL, with or without /v1")
	f.StringVar(&s.opts.Model, "model", "", "model id (default: the one that the endpoint lists)")
	f.Int64Var(&s.opts.Contexts, "contexts", 100, "logical contexts")
	f.Int64Var(&s.opts.Workers, "workers", 4, "requests in flight at once (default in an open loop: 256)")
	f.StringVar(&s.opts.Out, "out", "", "run folder; must be empty or new unless --resume")
	f.BoolVar(&s.opts.Resume, "resume", false, "go on with the run in --out")
	f.StringVar(&s.opts.Contract, "contract", ledger.ContractPlain, "what the run is held to: plain, controlled (canary and rollback, faults, parked turns; admitted from 10,000 contexts) or orchestration (about the client alone, against an endpoint that computes nothing; admitted from 10,000)")
	f.Int64Var(&s.opts.Turns, "turns", 0, "questions of a context, parked on disk between them (default 1; controlled 2)")
	f.StringVar(&s.keyFile, "api-key-file", "", "file with the API key (default: COTENANT_API_KEY)")
	f.StringArrayVar(&s.headers, "header", nil, "header to send, `Name: value`; repeatable")
	f.StringVar(&s.bodyJSON, "body-json", "", "JSON object whose members are sent with each request")
	f.Int64Var(&s.opts.MaxTokens, "max-tokens", 8, "tokens of an answer")
	f.Float64Var(&s.temperature, "temperature", 0, "sampling temperature")
	f.Float64Var(&s.topP, "top-p", 1, "nucleus sampling; sent only where given")
	f.Int64Var(&s.sampleSeed, "sample-seed", 0, "the server's sampling seed; sent only where given")
	f.StringVar(&s.prompts, "prompts", "", "JSON lines with prompts of your own: {\"prompt\": …} or {\"messages\": …}, and \"expect\"")
	f.Uint64Var(&s.seed, "seed", 1, "seed of the generated tasks")
	f.IntVar(&s.baseTokens, "base-tokens", loadgen.DefaultBaseTokens, "about how long the base prompt is")
	f.BoolVar(&s.unique, "unique", false, "a base prompt of its own for each context, so that no prefix can be reused")
	f.StringVar(&s.load.Shape, "load", "closed", "when contexts are sent: closed, constant:RATE, poisson:RATE or trace:FILE; see above")
	f.StringVar(&s.load.Objectives, "slo", "", "objectives, METRIC_pNN_us=LIMIT[,…], that each stage is held against; METRIC is ttft or latency")
	f.StringVar(&s.load.Tenants, "tenants", "", "tenants, NAME=WEIGHT[xSHARE][,…]: what each is due, and its share of the load (default: its weight)")
	f.BoolVar(&s.load.Paired, "paired", false, "ask each question twice, over the shared base prompt and over one of its own, and compare")
	f.StringArrayVar(&s.declared, "declare", nil, "what is measured, server=TEXT, hardware=TEXT or split=TEXT, for compare; repeatable")
	f.StringVar(&s.opts.MetricsURL, "metrics-url", "", "the server's metrics (default: /metrics of the endpoint; none: not read)")
	f.IntVar(&s.opts.ServerPID, "server-pid", 0, "the server's process (default: found by a loopback port)")
	f.StringVar(&s.opts.GPU.From, "gpu", soak.GPUAuto, "GPUs to sample: auto (this machine's, if the endpoint is on it), none, a UUID, or the URL of a dcgm-exporter")
	f.DurationVar(&s.opts.ReadyTimeout, "timeout-ready", 120*time.Second, "until the endpoint answers a first completion")
	f.DurationVar(&s.opts.Timeouts.Headers, "timeout-headers", 120*time.Second, "until response headers")
	f.DurationVar(&s.opts.Timeouts.Idle, "timeout-idle", 60*time.Second, "between two pieces of an answer")
	f.DurationVar(&s.opts.Timeouts.Total, "timeout-total", 600*time.Second, "of one attempt")
	f.Int64Var(&s.opts.MaxSpendTokens, "max-spend-tokens", 0, "stop when the endpoint has counted this many tokens")
	f.BoolVar(&s.opts.Confirm, "confirm", false, "needed for more than 1,000 contexts against an address that isn't loopback")
	f.StringVar(&s.signKey, "sign", "", "PEM file with an ed25519 private key (PKCS #8) to sign the ledger with")
	f.StringVar(&s.opts.Nonce, "nonce", "", "a verifier's challenge, with which every prompt begins")
	s.queue.add(f)
	f.BoolVar(&s.asJSON, "json", false, "print the ledger as JSON")
	return describe(c, "files", "0  finished and admitted", "1  nothing succeeded, or own fault", "3  finished, not admitted", "4  endpoint never ready")
}

// openWorkers is how many requests of an open loop may be in flight, where it isn't said: one that finds no worker free has to wait.
const openWorkers = 256

func runSoak(c *cobra.Command, s *soakFlags) error {
	if s.queue.join != "" {
		return takePart(c, s)
	}
	if q := s.queue.address; q != "" && q != embeddedQueue {
		if err := queue.CheckAddress(q); err != nil {
			return usagef(c, "--queue: %v", err)
		}
	}
	if err := s.complete(c); err != nil {
		return err
	}
	progress := newProgress(c.ErrOrStderr(), s.opts.Contexts)
	s.opts.Progress, s.opts.Log = progress.show, progress.log
	closeQueue, err := s.queue.host(&s.opts)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	res, err := soak.Run(c.Context(), s.opts)
	err = errors.Join(err, closeQueue())
	progress.end()
	if res != nil {
		if serr := s.sign(res.Dir); serr != nil && err == nil {
			err = serr
		}
		if perr := s.print(c, res); perr != nil && err == nil {
			err = perr
		}
	}
	code := soak.ExitCode(res, err)
	if code == exitYes {
		return nil
	}
	return &exit{code, soakOutcome(res, err), soakHint(c, code, s.opts.Out)}
}

// soakOutcome says in a line why the exit code isn't 0.
func soakOutcome(res *soak.Result, err error) error {
	switch {
	case err != nil:
		return err
	case res.Interrupted:
		return fmt.Errorf("interrupted; the ledger says how far the run got")
	case !res.Ledger.Admission.Admitted:
		return fmt.Errorf("not admitted: %s", strings.Join(res.Ledger.Admission.Why, "; "))
	}
	return fmt.Errorf("no request succeeded")
}

func soakHint(c *cobra.Command, code int, out string) string {
	switch code {
	case exitUsage:
		return c.CommandPath() + " --help"
	case exitInterrupted:
		return "go on with: cotenant soak … --resume --out " + out
	}
	return ""
}

// complete turns flags into options.
func (s *soakFlags) complete(c *cobra.Command) (err error) {
	if s.opts.Endpoint == "" {
		return usagef(c, "no endpoint: say --endpoint URL, for instance http://127.0.0.1:8080")
	}
	if s.opts.APIKey, err = apiKey(s.keyFile); err != nil {
		return usageError(c, err)
	}
	if err := s.readSigner(); err != nil {
		return usageError(c, err)
	}
	if err := s.checkTimeouts(c); err != nil {
		return err
	}
	if err := s.parseHeaders(c); err != nil {
		return err
	}
	if s.bodyJSON != "" {
		if !json.Valid([]byte(s.bodyJSON)) {
			return usagef(c, "--body-json isn't JSON")
		}
		s.opts.BodyJSON = []byte(s.bodyJSON)
	}
	s.opts.Temperature = &s.temperature
	if c.Flags().Changed("top-p") {
		s.opts.TopP = &s.topP
	}
	if c.Flags().Changed("sample-seed") {
		s.opts.Seed = &s.sampleSeed
	}
	s.opts.RulesVersion = verify.RulesVersion
	s.opts.Build = soak.BuildInfo(release)
	for _, d := range s.declared {
		axis, text, _ := strings.Cut(d, "=")
		into := map[string]*string{"server": &s.opts.Declared.Server, "hardware": &s.opts.Declared.Hardware, "split": &s.opts.Declared.Split}[axis]
		if into == nil || text == "" || *into != "" || len(text) > ledger.MaxText || !utf8.ValidString(text) {
			return usagef(c, "--declare %q: want server=TEXT, hardware=TEXT or split=TEXT, each once, at most %d bytes of UTF-8", d, ledger.MaxText)
		}
		*into = text
	}
	if err := s.workload(c); err != nil {
		return err
	}
	if s.load.Open() && !c.Flags().Changed("workers") {
		s.opts.Workers = min(openWorkers, max(1, s.opts.Contexts-1))
	}
	s.load.Seed = strconv.FormatUint(s.seed, 10)
	if s.opts.Load, err = s.load.Plan(s.opts.Workers, s.opts.Trace); err != nil {
		return usageError(c, err)
	}
	return nil
}

func (s *soakFlags) parseHeaders(c *cobra.Command) error {
	s.opts.Header = http.Header{}
	for _, h := range s.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return usagef(c, "--header %q: want \"Name: value\"", h)
		}
		s.opts.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return nil
}

func (s *soakFlags) workload(c *cobra.Command) error {
	path, traced := strings.CutPrefix(s.load.Shape, ledger.ArrivalTrace+":")
	for _, flag := range []string{"base-tokens", "unique", "paired", "prompts", "max-tokens"} {
		if traced && c.Flags().Changed(flag) {
			return usagef(c, "--%s doesn't go with a trace, which says what is sent", flag)
		}
	}
	if traced {
		t, err := loadgen.ReadTrace(path)
		if err != nil {
			return usageError(c, err)
		}
		s.opts.Source, s.opts.Trace, s.load.Shape = t, t, ledger.ArrivalTrace
		if !c.Flags().Changed("contexts") {
			s.opts.Contexts = int64(t.Len())
		}
		return nil
	}
	if s.prompts != "" {
		for _, flag := range []string{"seed", "base-tokens", "unique", "paired"} {
			if c.Flags().Changed(flag) {
				return usagef(c, "--%s says how tasks are generated; --prompts takes them from a file", flag)
			}
		}
		p, err := loadgen.ReadPrompts(s.prompts)
		if err != nil {
			return usageError(c, err)
		}
		s.opts.Source = p
		return nil
	}
	o := loadgen.Options{Seed: s.seed, BaseTokens: s.baseTokens, Unique: s.unique}
	w, err := loadgen.New(o)
	if err != nil {
		return usagef(c, "--base-tokens: %v", err)
	}
	if s.opts.Source = w; s.load.Paired {
		if s.opts.Source, err = loadgen.NewPairs(o); err != nil {
			return usagef(c, "--paired: %v", err)
		}
	}
	s.opts.Workload = soak.WorkloadInfo{Seed: strconv.FormatUint(s.seed, 10), BaseTokens: ledger.Some(int64(s.baseTokens)), Unique: s.unique}
	return nil
}

func (s *soakFlags) sign(dir string) error {
	if s.signer == nil {
		return nil
	}
	return ledger.Sign(dir, s.signer)
}

// readSigner reads the signing key, before the run: a key that can't be used is no reason to find out after it.
func (s *soakFlags) readSigner() error {
	if s.signKey == "" {
		return nil
	}
	data, err := readKey(s.signKey)
	if err != nil {
		return fmt.Errorf("reading the signing key: %w", err)
	}
	if s.signer, err = ledger.ParsePrivateKey(data); err != nil {
		return fmt.Errorf("reading the signing key %s: %w", s.signKey, err)
	}
	return nil
}

// checkTimeouts refuses limits that would be no limits.
func (s *soakFlags) checkTimeouts(c *cobra.Command) error {
	for _, name := range []string{"timeout-ready", "timeout-headers", "timeout-idle", "timeout-total"} {
		if d, err := c.Flags().GetDuration(name); err != nil || d <= 0 {
			return usagef(c, "--%s %v: want more than 0, for instance 10m", name, d)
		}
	}
	return nil
}

func (s *soakFlags) print(c *cobra.Command, res *soak.Result) error {
	if s.asJSON {
		data, err := os.ReadFile(filepath.Join(res.Dir, ledger.LedgerFile))
		if err != nil {
			return fmt.Errorf("reading the ledger again: %w", err)
		}
		_, err = c.OutOrStdout().Write(append(data, '\n'))
		return err
	}
	return soak.WriteTable(c.OutOrStdout(), &res.Ledger)
}
