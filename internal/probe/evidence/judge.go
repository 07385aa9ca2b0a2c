package evidence

import (
	"fmt"
	"slices"
)

// Judge computes what follows from the rest of a result: overlap, checks, warnings, whether cleanup is complete. `verify` calls it
// again and compares.
func (r *CreateResult) Judge() {
	r.Overlap = OverlapOf(r.Resources.Partitions)
	if r.Cycles != nil {
		r.Cycles.Summarize()
	}
	r.Cleanup.Judge()
	r.CleanupComplete = r.Cleanup.Complete
	r.Checks = r.checks()
	r.Warnings = r.warnings()
}

// Judge decides whether all is gone: the process has ended, memory is back as seen from outside, nothing is left.
func (c *Cleanup) Judge() {
	c.Complete = c.Process.Ended && !c.Process.Listed.Or(false) && c.Memory.Outside.Verdict == Returned && len(c.Left) == 0
}

// OverlapOf says on which SMs more than one partition ran, and how long all of them ran at once.
func OverlapOf(parts []Partition) Overlap {
	o := Overlap{SMIDs: []int{}, Disjoint: true}
	owners := make(map[int]int)
	var from, to int64
	for i, p := range parts {
		for _, id := range p.SMIDs {
			owners[id]++
		}
		if i == 0 {
			from, to = p.BeganNS, p.EndedNS
		}
		from, to = max(from, p.BeganNS), min(to, p.EndedNS)
	}
	o.TogetherNS = max(0, to-from)
	for id, n := range owners {
		if n > 1 {
			o.SMIDs = append(o.SMIDs, id)
		}
	}
	slices.Sort(o.SMIDs)
	o.Disjoint = len(o.SMIDs) == 0
	return o
}

// Summarize computes a Cycles' figures from its rows.
func (c *Cycles) Summarize() {
	c.KeptPerContext, c.CreateP50US, c.CreateMaxUS, c.DestroyP50US, c.DestroyMaxUS = 0, 0, 0, 0, 0
	n := len(c.Rows)
	if n == 0 {
		return
	}
	var create, destroy []int64
	for _, row := range c.Rows {
		create, destroy = append(create, row.CreateUS), append(destroy, row.DestroyUS)
	}
	slices.Sort(create)
	slices.Sort(destroy)
	c.CreateP50US, c.CreateMaxUS = create[(n-1)/2], create[n-1]
	c.DestroyP50US, c.DestroyMaxUS = destroy[(n-1)/2], destroy[n-1]
	if c.Contexts > 0 {
		c.KeptPerContext = (int64(c.FreeBefore) - int64(c.Rows[n-1].FreeBytes)) / int64(n*c.Contexts)
	}
}

// Passed reports whether no check failed.
func Passed(checks []Check) bool {
	return len(checks) > 0 && !slices.ContainsFunc(checks, func(c Check) bool { return c.Result == Fail })
}

// FailedChecks names the checks that failed.
func FailedChecks(checks []Check) []string {
	var names []string
	for _, c := range checks {
		if c.Result == Fail {
			names = append(names, c.ID+": "+c.Detail)
		}
	}
	return names
}

func check(id string, ok bool, format string, args ...any) Check {
	c := Check{ID: id, Result: Fail, Detail: fmt.Sprintf(format, args...)}
	if ok {
		c.Result = Pass
	}
	return c
}

func skip(id, why string) Check { return Check{ID: id, Result: NotApplicable, Detail: why} }

// checks hold what was observed against what was asked for.
func (r *CreateResult) checks() []Check {
	list := []Check{check("completed", r.Outcome == Completed && r.Failure == "", "outcome %s %s", r.Outcome, r.Failure)}
	list = append(list, r.partitionChecks()...)
	if r.TooMuch == nil {
		list = append(list, skip("too_much_refused", "not asked"))
	} else {
		list = append(list, check("too_much_refused", r.TooMuch.Code != 0, "%d SMs: %s", r.TooMuch.Requested, r.TooMuch.Symbol))
	}
	switch {
	case r.Request.Cycles == 0:
		list = append(list, skip("cycles", "not asked"))
	case r.Cycles == nil:
		list = append(list, check("cycles", false, "none of %d", r.Request.Cycles))
	default:
		list = append(list, check("cycles", len(r.Cycles.Rows) == r.Request.Cycles, "%d of %d", len(r.Cycles.Rows), r.Request.Cycles))
	}
	list = append(list, check("health_kept", r.Health.Lost == "", "%d samples %s", r.Health.Samples, r.Health.Lost))
	return append(list, r.Cleanup.checks()...)
}

func (c Cleanup) checks() []Check {
	api := check("api_cleanup", c.API.Verdict == "complete", "%s: %d made, %d destroyed, %d failures", c.API.Verdict, c.API.Created, c.API.Destroyed, len(c.API.Failures))
	if c.API.Verdict == "nothing_made" {
		api = skip("api_cleanup", "nothing was made")
	}
	o := c.Memory.Outside
	return []Check{api,
		check("process_gone", c.Process.Ended && !c.Process.Listed.Or(false), "ended %v, more processes than before %v", c.Process.Ended, c.Process.Listed.Or(false)),
		check("memory_returned", o.Verdict == Returned, "%s: %d bytes before, %d after, waited %d ms", o.Verdict, o.Before.Or(0), o.After.Or(0), o.WaitedMS),
		check("nothing_left", len(c.Left) == 0, "%v", c.Left),
	}
}

// asked is how many partitions were asked for.
func (r *CreateResult) asked() int {
	if r.Request.Plan.Groups > 0 {
		return r.Request.Plan.Groups
	}
	return len(r.Request.Plan.SMs)
}

func (r *CreateResult) partitionChecks() []Check {
	parts := r.Resources.Partitions
	if len(parts) == 0 {
		return []Check{check("partitions_granted", false, "0 of %d", r.asked())}
	}
	granted, agree, owned, outputs, counts := len(parts) == r.asked(), true, true, true, true
	sum, idsKnown := r.Resources.LeftSMs, true
	ids := make(map[uint64]bool)
	for _, p := range parts {
		granted = granted && p.Granted > 0 && (p.Requested < 0 || p.Granted >= p.Requested)
		agree = agree && p.GreenSMs.Or(-1) == p.Granted && p.ContextSMs.Or(-1) == p.Granted && p.StreamSMs.Or(p.Granted) == p.Granted
		owned = owned && p.StreamOwned.Or(false)
		outputs = outputs && p.OutputCorrect
		counts = counts && len(p.SMIDs) == p.Granted
		sum += p.Granted
		idsKnown = idsKnown && p.ID.OK()
		ids[p.ID.Or(0)] = true
	}
	list := []Check{
		check("one_device", r.Visible == 1, "%d devices visible to the worker", r.Visible),
		check("partitions_granted", granted, "%d of %d", len(parts), r.asked()),
		check("sms_add_up", sum == r.Resources.TotalSMs, "%d of %d", sum, r.Resources.TotalSMs),
		check("api_agrees", agree, "Green Context, context and, where it can be asked, stream against what was granted"),
		check("streams_owned", owned, "cuStreamGetGreenCtx of each stream"),
		check("output_correct", outputs, "every block's value in %d partitions", len(parts)),
		check("smid_counts", counts, "distinct %%smid values against SMs granted"),
		check("smids_disjoint", r.Overlap.Disjoint, "%d SMs in common", len(r.Overlap.SMIDs)),
	}
	if !idsKnown {
		return append(list, skip("ids_distinct", "cuGreenCtxGetId isn't there before CUDA 13.0"))
	}
	return append(list, check("ids_distinct", len(ids) == len(parts), "%d ids of %d Green Contexts", len(ids), len(parts)))
}

func (r *CreateResult) warnings() []string {
	w := []string{}
	add := func(cond bool, format string, args ...any) {
		if cond {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	m := r.Cleanup.Memory.InProcess
	add(m.Verdict == Kept, "the driver kept %d bytes after every call said success (%d contexts): they came back with the process's end only", m.KeptBytes, m.Contexts)
	add(len(r.Resources.Partitions) > 1 && r.Overlap.TogetherNS == 0, "the partitions' kernels did not run at the same time")
	add(len(r.Resources.Partitions) > 0 && !r.Resources.LimitsReported, "the driver doesn't report minimum and alignment: those of the programming guide were taken")
	add(!r.Cleanup.Memory.Outside.Attributed, "somebody else used the GPU: its memory can't be attributed")
	add(r.Health.Xid.Status != "supported_proven", "Xids could not be watched: %s", r.Health.Xid.Reason)
	add(r.Health.Display.Status != "supported_proven", "the display could not be watched: %s", r.Health.Display.Reason)
	return w
}
