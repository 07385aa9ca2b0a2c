package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cotenant/internal/loadgen"
	"cotenant/internal/queue"
	"cotenant/internal/soak"
)

// queueFlags say how several processes make one run.
type queueFlags struct {
	address, listen, join string
}

// embeddedQueue is the value of --queue that starts a server in this process.
const embeddedQueue = "embedded"

func (q *queueFlags) add(f *pflag.FlagSet) {
	f.StringVar(&q.address, "queue", "", "let other processes share the run: embedded (a NATS server in this process), or nats://… of a cluster with JetStream")
	f.StringVar(&q.listen, "queue-listen", "127.0.0.1:0", "where the embedded server listens; who can reach it and has its token gets the run's secrets")
	f.StringVar(&q.join, "join", "", "take part in a run that another process hosts: what it printed, nats://…/RUN")
}

// host prepares a shared run where one is asked for, and returns what ends it.
func (q *queueFlags) host(o *soak.Options) (func() error, error) {
	if q.address == "" {
		return func() error { return nil }, nil
	}
	ho := queue.HostOptions{Listen: q.listen, Log: o.Log}
	if q.address != embeddedQueue {
		ho.Address = q.address
	}
	h, err := queue.NewHost(ho)
	if err != nil {
		return nil, err
	}
	o.Share = h
	return h.Close, nil
}

// takePart makes this process a member of another's run. The ledger is the host's.
func takePart(c *cobra.Command, s *soakFlags) error {
	for _, flag := range []string{"endpoint", "out", "contexts", "workers", "contract", "model", "queue", "resume", "nonce", "sign", "seed", "json"} {
		if c.Flags().Changed(flag) {
			return usagef(c, "--%s is the host's to say; a process that joins a run takes it from there", flag)
		}
	}
	var prompts loadgen.Source
	if s.prompts != "" {
		p, err := loadgen.ReadPrompts(s.prompts)
		if err != nil {
			return usageError(c, err)
		}
		prompts = p
	}
	if _, _, err := queue.ParseJoin(s.queue.join); err != nil {
		return usageError(c, err)
	}
	m, err := queue.Join(c.Context(), s.queue.join)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	o, err := m.Options(prompts)
	if err != nil {
		return errors.Join(usageError(c, err), m.Close())
	}
	if o.APIKey, err = apiKey(s.keyFile); err != nil {
		return errors.Join(usageError(c, err), m.Close())
	}
	if err := s.parseHeaders(c); err != nil {
		return errors.Join(err, m.Close())
	}
	o.Header = s.opts.Header
	progress := newProgress(c.ErrOrStderr(), o.Contexts)
	o.Progress, o.Log, o.Build = progress.show, progress.log, soak.BuildInfo(release)
	_, err = soak.Run(c.Context(), o)
	progress.end()
	if err = errors.Join(err, m.Close()); err != nil {
		return &exit{soak.ExitCode(nil, err), err, ""}
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), "Nothing is left to do; the host writes the ledger.")
	return err
}
