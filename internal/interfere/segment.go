package interfere

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"cotenant/internal/interfere/record"
	"cotenant/internal/observe"
	"cotenant/internal/probe"
)

// Limits of single orders.
const (
	prepareLimit = 90 * time.Second
	orderLimit   = 60 * time.Second
)

// segment is one supervised stretch of work.
type segment struct {
	r     *run
	s     *probe.Session
	ctx   context.Context
	start time.Time
	end   time.Time
	pipes [2]string // of our MPS daemons, the classic one and that with static partitions; empty
	peers []*peer
	// victims and aggressors are who plays which part, by mechanism.
	victims, aggressors map[string]*peer
	record              record.Segment
	watch               sampler
}

// role is a worker to be: which parts it plays.
type role struct {
	name                string
	mechanisms          []string
	victims, aggressors bool
	mps                 bool  // a client of the classic daemon
	chunks              int64 // a client in a static partition; which of the two is told by the part it plays
	variables           []string
}

// work is a segment from its first process to its last row.
func (r *run) work(ctx context.Context, s *probe.Session) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &segment{r: r, s: s, ctx: ctx, start: time.Now(), end: time.Now().Add(r.o.TimeLimit), victims: make(map[string]*peer), aggressors: make(map[string]*peer)}
	defer func() { err = errors.Join(err, g.close()) }()
	if err := r.files(); err != nil {
		return err
	}
	g.watch = sampler{session: s.NVML(), uuid: r.plan.GPUUUID}
	if err := g.begin(); err != nil {
		return err
	}
	return g.blocks()
}

// files writes the plan, cuts a torn row off, and opens the rows.
func (r *run) files() error {
	if !r.o.Resume {
		content, err := record.Encode(r.plan)
		if err == nil {
			err = replace(r.dir, record.PlanFile, content)
		}
		if err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(r.dir, record.RowsFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("opening the rows: %w", err)
	}
	r.rows = f
	if err := f.Truncate(r.folder.Whole); err != nil {
		return fmt.Errorf("cutting off a row that isn't whole: %w", err)
	}
	_, err = f.Seek(0, 2)
	return err
}

// roles are the workers that a plan's cells need.
func roles(p *record.Plan) []role {
	main := role{name: "main", victims: true, aggressors: true}
	list := []role{}
	below := false
	for _, m := range p.Mechanisms {
		if !m.Planned() {
			continue
		}
		victim := role{name: "victim-" + strings.ReplaceAll(m.ID, ":", "-"), mechanisms: []string{m.ID}, victims: true}
		other := role{name: "aggressor-" + strings.ReplaceAll(m.ID, ":", "-"), mechanisms: []string{m.ID}, aggressors: true}
		switch m.Kind {
		case record.Processes:
			list = append(list, victim, other)
		case record.MPSStatic:
			victim.chunks, other.chunks = m.Chunks, m.Chunks
			list = append(list, victim, other)
		case record.MPS, record.MPSPercent, record.MPSBelow:
			victim.mps, other.mps = true, true
			if m.Kind == record.MPSPercent {
				const share = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="
				victim.variables, other.variables = []string{share + fmt.Sprint(m.Percent)}, []string{share + fmt.Sprint(100-m.Percent)}
			}
			if m.Kind == record.MPSBelow {
				other.variables, below = []string{"CUDA_MPS_CLIENT_PRIORITY=1"}, true
				list = append(list, other)
				continue
			}
			list = append(list, victim, other)
		default:
			main.mechanisms = append(main.mechanisms, m.ID)
		}
	}
	if below { // its victim is a client like any other
		i := slices.IndexFunc(list, func(r role) bool { return r.name == "victim-"+record.MPS })
		if i < 0 {
			list = append(list, role{name: "victim-" + record.MPS, victims: true, mps: true})
			i = len(list) - 1
		}
		list[i].mechanisms = append(list[i].mechanisms, record.MPSBelow)
	}
	return append([]role{main}, list...)
}

// begin starts workers, has everything made and checked, and writes the segment's line.
func (g *segment) begin() error {
	p := g.r.plan
	list := roles(p)
	made := make(map[string]record.Made)
	list = g.daemons(list, made)
	all, err := g.workers(list)
	if err != nil {
		return err
	}
	g.record = record.Segment{Segment: int64(len(g.r.folder.Segments) + 1), RunID: g.s.RunID(), Started: g.start.UTC().Format(time.RFC3339), Program: g.r.o.Program.Version,
		GPUUUID: p.GPUUUID, GPUName: p.GPUName, SMs: p.SMs, Modules: []record.Module{}, Checks: []record.Check{}, Made: []record.Made{}}
	g.host()
	for i, f := range all {
		g.file(list[i], f, made)
	}
	for _, m := range p.Mechanisms {
		if x, ok := made[m.ID]; ok {
			g.record.Made = append(g.record.Made, x)
		}
	}
	sort.Slice(g.record.Modules, func(a, b int) bool { return g.record.Modules[a].Name < g.record.Modules[b].Name })
	if list := g.r.folder.Segments; len(list) > 0 {
		if detail := record.Differs(list[0], g.record); detail != "" {
			return fmt.Errorf("this segment would have %s than segment 1: measure into a folder of its own", detail)
		}
	}
	for _, w := range g.peers {
		r, err := w.ask(order{Do: doCheck}, orderLimit)
		if err != nil {
			return err
		}
		g.record.Checks = append(g.record.Checks, r.Checks...)
	}
	r, err := g.victims[record.Whole].ask(order{Do: doOverhead}, orderLimit)
	if err != nil {
		return err
	}
	g.record.LaunchHostNS, g.record.LaunchEventNS, g.record.SubmitNS = median(r.Host), median(r.Event), median(r.Submit)
	if err := g.write(); err != nil {
		return err
	}
	for _, c := range g.record.Checks {
		if c.Result != record.Pass {
			return fmt.Errorf("nothing is timed: %s: %s", c.Kernel, c.Detail)
		}
	}
	g.s.SawServers(g.ctx)
	return nil
}

// daemons starts those that the roles need. What needs one that can't be had can't be made; the rest can.
func (g *segment) daemons(list []role, made map[string]record.Made) []role {
	without := func(needs func(role) bool, err error) {
		list = slices.DeleteFunc(list, func(r role) bool {
			if !needs(r) {
				return false
			}
			for _, m := range r.mechanisms {
				made[m] = record.Made{Mechanism: m, Failure: "the MPS daemon: " + err.Error()}
			}
			return true
		})
	}
	var err error
	classic, static := func(r role) bool { return r.mps }, func(r role) bool { return r.chunks > 0 }
	if slices.ContainsFunc(list, classic) {
		if g.pipes[0], err = g.s.StartMPS(g.ctx, false); err != nil {
			without(classic, err)
		}
	}
	i := slices.IndexFunc(list, static)
	if i < 0 {
		return list
	}
	chunks := list[i].chunks
	others := func(r role) bool { return r.chunks > 0 && r.chunks != chunks }
	if slices.ContainsFunc(list, others) {
		without(others, fmt.Errorf("a run has one static split, which is that of %d chunks", chunks))
	}
	var parts [2]string
	if g.pipes[1], err = g.s.StartMPS(g.ctx, true); err == nil {
		parts, err = g.s.SplitMPS(g.ctx, int(chunks))
	}
	if err != nil {
		without(static, err)
	}
	for i := range list {
		if !static(list[i]) {
			continue
		}
		part := parts[0]
		if list[i].aggressors {
			part = parts[1]
		}
		list[i].variables = []string{"CUDA_MPS_SM_PARTITION=" + part}
	}
	return list
}

func median(s record.Series) int64 {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[(len(sorted)-1)/2]
}

// write appends the segment's line.
func (g *segment) write() error {
	f, err := os.OpenFile(filepath.Join(g.r.dir, record.SegmentsFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err == nil {
		err = errors.Join(appendLine(f, g.record), f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("writing the segment: %w", err)
	}
	return nil
}

// host fills in what NVML and the inspection say.
func (g *segment) host() {
	g.record.Driver, g.record.CUDA = g.s.Versions()
	if s := g.s.NVML(); s != nil {
		if p, err := s.Power(g.r.plan.GPUUUID); err == nil {
			g.record.MaxMHz, g.record.LimitMW = wide(p.MaxSMMHz), wide(p.LimitMW)
		}
	}
}

// file puts what a worker made into the segment.
func (g *segment) file(r role, f *facts, made map[string]record.Made) {
	for _, m := range f.Modules {
		if !slices.Contains(g.record.Modules, m) {
			g.record.Modules = append(g.record.Modules, m)
		}
	}
	if r.name == "main" {
		g.record.Priority = f.Priority
	}
	for _, x := range f.Made {
		old, ok := made[x.Mechanism]
		if !ok {
			old = record.Made{Mechanism: x.Mechanism}
		}
		if r.victims {
			old.VictimSMs = x.VictimSMs
		}
		if r.aggressors {
			old.AggressorSMs = x.AggressorSMs
		}
		if x.Failure != "" {
			old.Failure = x.Failure
		}
		made[x.Mechanism] = old
	}
}

// workers starts the workers of all roles and has them prepare at once.
func (g *segment) workers(list []role) ([]*facts, error) {
	all := make([]*facts, len(list))
	failures := make([]error, len(list))
	g.peers = make([]*peer, len(list))
	var wait sync.WaitGroup
	for i, r := range list {
		wait.Go(func() { all[i], failures[i] = g.startOne(i, r) })
	}
	wait.Wait()
	g.peers = slices.DeleteFunc(g.peers, func(p *peer) bool { return p == nil })
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	for i, r := range list {
		for _, m := range r.mechanisms {
			if r.victims {
				g.victims[m] = g.peers[i]
			}
			if r.aggressors {
				g.aggressors[m] = g.peers[i]
			}
		}
	}
	return all, nil
}

func (g *segment) startOne(i int, r role) (*facts, error) {
	l, err := listen(g.s.Private(), r.name)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	pipe := ""
	switch {
	case r.mps:
		pipe = g.pipes[0]
	case r.chunks > 0:
		pipe = g.pipes[1]
	}
	dir, err := filepath.Abs(g.r.dir)
	if err != nil {
		return nil, err
	}
	p := &peer{name: r.name, gone: make(chan string, 1)}
	req := workRequest{Worker: g.s.Worker(r.name), Names: g.s.Libraries(), GPUUUID: g.r.plan.GPUUUID, Socket: socketName(g.s.Private(), r.name), Plan: dir,
		Mechanisms: r.mechanisms, Victims: r.victims, Aggressors: r.aggressors}
	g.s.Start(g.ctx, r.name, workerTask, req, pipe, r.variables, func(why string) {
		p.gone <- why
		l.Close() // whoever waits for it to call waits no longer
	})
	_ = l.SetDeadline(time.Now().Add(prepareLimit))
	if p.conn, err = l.Accept(); err != nil {
		select {
		case why := <-p.gone:
			p.gone <- why
			return nil, fmt.Errorf("worker %s ended before it was asked anything: %s", r.name, why)
		default:
		}
		return nil, fmt.Errorf("worker %s: %w", r.name, err)
	}
	p.lines = scanner(p.conn)
	g.peers[i] = p
	// Who is interrupted doesn't wait for replies.
	context.AfterFunc(g.ctx, func() { p.conn.Close() })
	answer, err := p.ask(order{Do: doPrepare}, prepareLimit)
	return answer.Facts, err
}

// close tells the workers to quit. Session.end waits for them.
func (g *segment) close() error {
	var err error
	for _, p := range g.peers {
		if p != nil && p.conn != nil {
			_, _ = p.ask(order{Do: doQuit}, 10*time.Second)
			p.conn.Close()
		}
	}
	if g.r.rows != nil {
		err = errors.Join(g.r.rows.Sync(), g.r.rows.Close())
	}
	return err
}

func wide[T uint32 | int32 | uint64](v observe.Value[T]) *int64 {
	x, ok := v.Get()
	if !ok {
		return nil
	}
	n := int64(x)
	return &n
}
