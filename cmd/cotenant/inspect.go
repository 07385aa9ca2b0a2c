package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"cotenant/internal/inspect"
	"cotenant/internal/topology"
)

// testRoot names the variable by which a test makes inspect read another host's files; the report then says so.
const testRoot = "COTENANT_TEST_ROOT"

type inspectFlags struct {
	opts     inspect.Options
	topology string
	format   string
	asJSON   bool
}

func newInspect() *cobra.Command {
	var f inspectFlags
	c := &cobra.Command{
		Use:   "inspect",
		Short: "Tell which GPU sharing mechanisms this host really has",
		Long: "Asks the driver, its libraries and tools, the kernel, containers and toolkits, each in a bounded way, and prints a verdict for\n" +
			"each GPU and mechanism: green contexts, workqueue resources, heterogeneous split, MPS, MPS static partitions, MPS v3, MIG and\n" +
			"time-slicing. It creates no context, starts no daemon or server and sets no mode. What asking a source may do all the same is\n" +
			"listed in the report. A source that fails or hangs is reported; the rest is printed.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return runInspect(c, &f) },
	}
	fs := c.Flags()
	fs.BoolVar(&f.asJSON, "json", false, "print JSON; the same as --format json")
	fs.StringVar(&f.format, "format", "table", "table, json, or nfd: labels for Node Feature Discovery")
	fs.DurationVar(&f.opts.Timeout, "timeout", inspect.DefaultTimeout, "for the whole inspection, at most 60s")
	fs.StringVar(&f.topology, "topology", "", "TOML file that declares hosts and GPU roles by UUID; only read")
	fs.BoolVar(&f.opts.MPSPartitions, "mps-lspart", false, "also ask a running MPS daemon for its partitions, which makes it initialise CUDA")
	fs.BoolVar(&f.opts.Volatile, "volatile", false, "add what changes between two runs: pids, memory in use, power, temperature, clocks, times")
	return describe(c, "nothing", "0  a report was printed, however degraded", "1  no report")
}

func runInspect(c *cobra.Command, f *inspectFlags) error {
	if f.asJSON {
		if c.Flags().Changed("format") && f.format != "json" {
			return usagef(c, "--json and --format %s contradict each other", f.format)
		}
		f.format = "json"
	}
	if f.format != "table" && f.format != "json" && f.format != "nfd" {
		return usagef(c, "--format %q: want table, json or nfd", f.format)
	}
	if f.opts.Timeout <= 0 {
		return usagef(c, "--timeout %v: want more than 0 and at most %v", f.opts.Timeout, inspect.MaxTimeout)
	}
	if err := f.opts.Check(); err != nil {
		return usagef(c, "--%v", err)
	}
	var topo *topology.Topology
	if f.topology != "" {
		var err error
		if topo, err = topology.Read(f.topology); err != nil {
			return usageError(c, err)
		}
	}
	f.opts.Version, f.opts.Root = version(), os.Getenv(testRoot)
	start := time.Now()
	report := inspect.Run(c.Context(), f.opts)
	if wasInterrupted(c.Context()) {
		return &exit{exitInterrupted, fmt.Errorf("interrupted after %v; no report", time.Since(start).Round(time.Millisecond)), ""}
	}
	if topo != nil {
		report.Bind(topo)
	}
	w := c.OutOrStdout()
	switch f.format {
	case "json":
		return report.WriteJSON(w)
	case "nfd":
		return report.WriteNFD(w)
	}
	return report.WriteTable(w)
}
