package evidence

import "fmt"

// claims fills in what a report establishes, bounded to what was observed, and what it doesn't.
func (f *folder) claims(r *Report) {
	r.DoesNot = append(r.DoesNot, "anything about another GPU, driver, program version or time",
		"that partitions protect latency: compute is divided, memory, caches, bandwidth, power and clocks are not; see `cotenant interfere`")
	if !r.Holds {
		return
	}
	switch {
	case f.manifest.Outcome == Refused:
		r.Establishes = append(r.Establishes, "go/no-go said no, and nothing was made")
	case f.create != nil:
		f.create.claims(r)
	case f.contained != nil:
		f.contained.claims(r)
	case f.mps != nil:
		f.mpsClaims(r)
	case f.measure != nil:
		r.say(passed(f.measure.Checks, "process_gone", "memory_returned", "nothing_left"), "nothing of a measurement with %d processes is left: no process, no folder, no device memory", len(f.measure.Processes))
	}
}

func passed(checks []Check, ids ...string) bool {
	n := 0
	for _, c := range checks {
		for _, id := range ids {
			if c.ID == id && c.Result == Pass {
				n++
			}
		}
	}
	return n == len(ids)
}

func (r *Report) say(cond bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if cond {
		r.Establishes = append(r.Establishes, text)
	} else {
		r.DoesNot = append(r.DoesNot, text)
	}
}

func (c *ContainerResult) claims(r *Report) {
	r.say(passed(c.Checks, "binary_same", "completed"), "in a container of image %s ran this program, by SHA-256, as the audited service says", c.Image.Reference())
	switch {
	case c.Create != nil:
		r.say(passed(c.Checks, "created", "document", "one_gpu", "exit_code"), "the container is given the GPU, and what `probe create` needs")
		c.Create.claims(r)
	case c.Probe != CreateOperation:
		r.say(passed(c.Checks, "prerequisites_met", "document", "one_gpu", "exit_code"), "the container is given the GPU, and what creating Green Contexts needs is there: presence, not proof")
	}
	r.say(passed(c.Checks, "container_gone", "process_gone", "memory_returned", "nothing_left"), "nothing is left of the container: not in the engine's list, not by its id, no device memory")
	r.DoesNot = append(r.DoesNot, "what the engine did besides what it was asked for: its word is the proof that the container is gone")
}

func (c *CreateResult) claims(r *Report) {
	on := fmt.Sprintf("on %s, driver %s (CUDA %s)", c.GPUName, c.DriverRelease, c.DriverVersion)
	r.say(passed(c.Checks, "partitions_granted", "api_agrees", "output_correct"), "Green Contexts can be created %s: %d were, and ran a kernel with a known result", on, len(c.Resources.Partitions))
	r.say(passed(c.Checks, "smid_counts", "smids_disjoint"), "their SM sets are disjoint and as large as the driver says, by %%smid")
	r.say(passed(c.Checks, "api_cleanup"), "cleanup by the API is complete: %d made, %d destroyed, the primary context gone", c.Cleanup.API.Created, c.Cleanup.API.Destroyed)
	m := c.Cleanup.Memory
	r.say(m.InProcess.Verdict == Returned, "the process got all device memory back by destroying (kept: %d bytes after %d contexts)", m.InProcess.KeptBytes, m.InProcess.Contexts)
	r.say(passed(c.Checks, "memory_returned", "process_gone"), "after the process's end the GPU's memory and processes are what they were, seen from outside")
	if c.Cycles != nil {
		r.say(passed(c.Checks, "cycles"), "%d repeated creations and destructions in one process; %d bytes of device memory kept a context", len(c.Cycles.Rows), c.Cycles.KeptPerContext)
	}
	if len(c.Map) > 0 {
		r.say(true, "which of %d splits the driver grants", len(c.Map))
	}
	r.DoesNot = append(r.DoesNot, "that kernels of different partitions always run at once: workqueues may serialise them")
}

func (f *folder) mpsClaims(r *Report) {
	m := f.mps
	on := fmt.Sprintf("with control binary %d, driver %s", m.ControlVersion.Or(0), m.DriverRelease)
	r.say(passed(m.Checks, "classic_starts", "whole_client"), "MPS starts %s and a client gets the whole GPU", on)
	r.say(passed(m.Checks, "share_held", "share_only_tightens"), "a client with %d %% is told no more SMs than that, also where it asks for more", m.Request.Percent)
	r.say(passed(m.Checks, "memory_limit_holds"), "a client's memory limit of %d bytes holds", m.Request.MemoryLimit)
	r.say(passed(m.Checks, "priority_accepted"), "a client priority is accepted")
	r.say(passed(m.Checks, "green_in_whole"), "Green Contexts can be made inside an MPS client with the whole GPU")
	if s := m.Classic.Client("share"); s != nil {
		found := s.GreenFailure
		if s.Green != nil {
			found = s.greenText()
		}
		r.say(s.GreenApart(), "Green Contexts inside a client with %d %% divide its SMs (found: %s)", m.Request.Percent, found)
	}
	r.say(passed(m.Checks, "static_starts", "partitions_made", "clients_in_partitions", "partitions_disjoint", "partitions_removed"), "static partitions can be made, used and removed, on disjoint SMs")
	r.say(passed(m.Checks, "classic_quits", "process_gone", "memory_returned", "nothing_left"), "nothing of the daemon is left: no process, no folder, no device memory")
	r.say(passed(m.Checks, "others_untouched"), "daemons that were there before are as before")
	r.DoesNot = append(r.DoesNot, "that a priority changes what runs first", "that a client's share is a fixed set of SMs")
}
