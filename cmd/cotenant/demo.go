package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/server"
	"cotenant/internal/soak"
	"cotenant/internal/verify"
)

const (
	demoContexts = 100
	demoWorkers  = 4
	demoSeed     = 1
	demoPeriod   = 50 * time.Millisecond // a run of half a second: samples a second would see nothing
)

func newDemo() *cobra.Command {
	var out string
	var asJSON bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Serve the embedded model, soak it with 100 contexts and verify the ledger",
		Long: "The main job from end to end, in one process and under a minute: serves the embedded model on a loopback port, soaks it at\n" +
			"rung 100 with 4 workers, writes the ledger, verifies it and prints what it establishes.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if out == "" {
				out = filepath.Join("cotenant-runs", "demo-"+time.Now().UTC().Format("20060102T150405Z"))
			}
			return demo(c, out, asJSON)
		},
	}
	c.Flags().StringVar(&out, "out", "", "run folder; must be empty or new (default: cotenant-runs/demo-TIME)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the verification report as JSON")
	return describe(c, "files under its run folder", "0  the ledger was admitted and verifies", "1  failed", "3  the ledger was not admitted, or a rule failed")
}

func demo(c *cobra.Command, out string, asJSON bool) error {
	if err := newFolder(c, out); err != nil {
		return err
	}
	errs := c.ErrOrStderr()
	e, err := openEngine(modelOptions{Backend: "cpu", MaxSeqs: demoWorkers, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := server.New(server.Config{Generators: []server.Generator{e}, Version: version()})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	hs := s.HTTPServer(s.Handler())
	go hs.Serve(listener)
	defer hs.Close()
	endpoint := "http://" + listener.Addr().String()
	fmt.Fprintf(errs, "serving %s on %s, soaking it with %d contexts over %d workers\n", e.Model().ID, endpoint, demoContexts, demoWorkers)

	w, err := loadgen.New(loadgen.Options{Seed: demoSeed})
	if err != nil {
		return err
	}
	p := newProgress(errs, demoContexts)
	res, err := soak.Run(c.Context(), soak.Options{
		Endpoint: endpoint, Model: e.Model().ID, Contexts: demoContexts, Workers: demoWorkers, Out: out, InProcess: true,
		Source: w, Workload: soak.WorkloadInfo{Seed: strconv.Itoa(demoSeed), BaseTokens: ledger.Some(loadgen.DefaultBaseTokens)},
		Build: soak.BuildInfo(release), RulesVersion: verify.RulesVersion, Progress: p.show, Log: p.log, Period: demoPeriod,
	})
	p.end()
	if code := soak.ExitCode(res, err); code != exitYes && code != exitNo {
		return &exit{code, soakOutcome(res, err), ""}
	}
	if !asJSON {
		if err := soak.WriteTable(c.OutOrStdout(), &res.Ledger); err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout())
	}
	if err := verifyAll(c.OutOrStdout(), []string{out}, verify.Options{}, asJSON); err != nil {
		return err
	}
	if !res.Ledger.Admission.Admitted {
		return &exit{exitNo, soakOutcome(res, nil), ""}
	}
	nextSteps(errs, out)
	return nil
}

// nextSteps says what to try next.
func nextSteps(w io.Writer, out string) {
	self := "cotenant"
	if path, err := os.Executable(); err == nil && filepath.Base(path) != self {
		self = "go run ./cmd/cotenant"
	}
	fmt.Fprintf(w, "The evidence is in %s. Change a number in it and ask again: %s verify %s\n", out, self, out)
	fmt.Fprintf(w, "Draw its page: %s report %s\n", self, out)
	fmt.Fprintf(w, "Next: %s serve --model FILE.gguf, and in another shell: %s soak --endpoint http://127.0.0.1:8080 --out run\n", self, self)
}
