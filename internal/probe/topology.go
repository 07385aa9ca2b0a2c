package probe

import (
	"slices"
	"strings"

	"cotenant/internal/cuda/query"
	"cotenant/internal/inspect"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/topology"
)

// roleOf says which declared role a GPU has, given what a topology binds on this host.
func roleOf(t *topology.Topology, b topology.Binding, uuid string) *evidence.Role {
	r := &evidence.Role{TopologySHA256: t.SHA256, Host: b.Host, State: topology.Absent, Reason: b.Reason}
	if b.Host == "" {
		return r
	}
	own := func(x topology.BoundRole) bool { return strings.EqualFold(x.UUID, uuid) }
	if i := slices.IndexFunc(b.Roles, own); i >= 0 {
		r.Role, r.State, r.Reason = b.Roles[i].Role, b.Roles[i].State, b.Roles[i].Reason
	} else if i := slices.IndexFunc(b.Foreign, own); i >= 0 {
		r.Reason = "the UUID is that of role " + b.Foreign[i].Role + " of another declared host"
	} else {
		r.Reason = "no role of this host has this UUID"
	}
	return r
}

// bind adds the declared roles to what was inspected.
func (c Common) bind(report *inspect.Report) *evidence.Role {
	if c.Topology == nil {
		return nil
	}
	report.Bind(c.Topology)
	return roleOf(c.Topology, *report.Topology, c.GPUUUID)
}

// roleGate holds the GPU against the operator's topology.
func (h *host) roleGate() evidence.Gate {
	g := gate("role_bound", "does the operator's topology give this GPU a role on this host?")
	r := h.role
	switch {
	case r == nil:
		return notApplicable(g, "no --topology")
	case r.State != topology.Bound:
		return no(g, observe.Clip(r.State+": "+r.Reason))
	}
	return yes(g, "role "+r.Role)
}

// role binds the topology to what libcuda and NVML enumerate.
func (p *Prerequisites) role(t *topology.Topology, driver query.Report, management nvml.Report) {
	seen := make(map[string]string)
	for _, d := range driver.Devices {
		if uuid, err := topology.ParseUUID("GPU-" + strings.TrimPrefix(d.UUID.Or(""), "GPU-")); err == nil {
			seen[uuid] = d.Name.Or("")
		}
	}
	for _, d := range management.Devices {
		seen[d.UUID.Or("")] = d.Name.Or("")
		for _, m := range d.MIG.Devices {
			seen[m.UUID.Or("")] = m.Name.Or("")
		}
	}
	delete(seen, "")
	var observed []topology.Observed
	for uuid, name := range seen {
		observed = append(observed, topology.Observed{UUID: uuid, Name: name})
	}
	p.Role = roleOf(t, t.Bind(observed), p.GPUUUID)
	if p.Role.State != topology.Bound {
		p.Missing = append(p.Missing, "role in the topology ("+p.Role.State+": "+p.Role.Reason+")")
	}
}
