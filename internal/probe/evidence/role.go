package evidence

import (
	"encoding/json"
	"slices"
	"strings"

	"cotenant/internal/topology"
)

// roleRule holds the GPU's role against inspect.json.
func (f *folder) roleRule() (string, string) {
	p, m := f.plan.Role, f.manifest.Role
	if (p == nil) != (m == nil) || p != nil && *p != *m {
		return fail("plan and manifest have different roles")
	}
	i := slices.IndexFunc(f.plan.Gates, func(g Gate) bool { return g.ID == "role_bound" })
	if p == nil {
		if i >= 0 && f.plan.Gates[i].Answer != NotApplicable {
			return fail("the gate answers %s without a topology", f.plan.Gates[i].Answer)
		}
		return NotApplicable, "no topology was given"
	}
	bound := p.State == topology.Bound
	if i < 0 || (f.plan.Gates[i].Answer == Yes) != bound {
		return fail("the role is %s and the gate doesn't say so", p.State)
	}
	var report struct {
		Topology *topology.Binding `json:"topology"`
	}
	if err := json.Unmarshal(f.files[InspectFile], &report); err != nil || report.Topology == nil {
		return fail("%s binds no topology", InspectFile)
	}
	b := report.Topology
	there := slices.ContainsFunc(b.Roles, func(r topology.BoundRole) bool {
		return r.Host == p.Host && r.Role == p.Role && strings.EqualFold(r.UUID, f.manifest.GPUUUID) && r.State == topology.Bound
	})
	if b.Host != p.Host || there != bound {
		return fail("%s doesn't bind role %q of host %q to this GPU", InspectFile, p.Role, p.Host)
	}
	return Pass, ""
}
