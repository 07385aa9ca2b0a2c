package inspect

import (
	"cmp"
	"slices"
	"strings"

	"cotenant/internal/cuda/query"
	"cotenant/internal/nvml"
)

// unit is one GPU with what each source says of it.
type unit struct {
	uuid string // "GPU-…"; empty where nobody tells
	pci  string // 0000:06:00.0; empty where nobody tells

	nvml *nvml.Device
	// cuda is the GPU itself, or the MIG devices of it that CUDA enumerates.
	cuda   []*query.Device
	smi    *SMIRow
	driver *DriverGPU
	bus    *PCIDevice
}

// bare is a UUID without its prefix, in lower case: the driver's 16 bytes hold no prefix.
func bare(uuid string) string {
	u := strings.ToLower(uuid)
	for _, prefix := range []string{"gpu-", "mig-"} {
		u = strings.TrimPrefix(u, prefix)
	}
	return u
}

// units joins what the sources say by UUID, then by place on the bus. Indexes join nothing: each source counts in its own
// order.
func units(f *Facts) []*unit {
	var all []*unit
	find := func(uuid, pci string) *unit {
		for _, u := range all {
			if uuid != "" && u.uuid != "" && bare(u.uuid) == bare(uuid) {
				return u
			}
		}
		for _, u := range all {
			// The same place with another UUID is another GPU's word, unless it is a MIG device's.
			if pci != "" && u.pci == pci {
				return u
			}
		}
		return nil
	}
	claim := func(uuid, pci string) *unit {
		u := find(uuid, pci)
		if u == nil {
			u = &unit{}
			all = append(all, u)
		}
		if u.uuid == "" {
			u.uuid = uuid
		}
		if u.pci == "" {
			u.pci = pci
		}
		return u
	}
	for i := range f.NVML.Devices {
		d := &f.NVML.Devices[i]
		pci := ""
		if p, ok := d.PCI.Get(); ok {
			pci = busID(p.BusID)
		}
		if uuid := d.UUID.Or(""); uuid != "" || pci != "" {
			claim(uuid, pci).nvml = d
		} else {
			// A lost GPU has neither. It is matched last, with what is left.
			all = append(all, &unit{nvml: d})
		}
	}
	joinCUDA(f, &all, claim)
	for i := range f.SMI.Rows {
		row := &f.SMI.Rows[i]
		claim(row.UUID.Or(""), busID(row.PCI.Or(""))).smi = row
	}
	joinBus(f, &all, claim)
	slices.SortStableFunc(all, func(a, b *unit) int {
		if (a.pci == "") != (b.pci == "") {
			return cmp.Compare(b.pci, a.pci) // those without a place come last
		}
		return cmp.Or(cmp.Compare(len(a.pci), len(b.pci)), cmp.Compare(a.pci, b.pci), cmp.Compare(a.uuid, b.uuid))
	})
	return all
}

// joinCUDA adds what CUDA enumerates. In MIG mode a device is an instance, with a UUID of its own at its GPU's place.
func joinCUDA(f *Facts, all *[]*unit, claim func(uuid, pci string) *unit) {
	for i := range f.CUDA.Devices {
		d := &f.CUDA.Devices[i]
		uuid, pci := d.UUID.Or(""), busID(d.PCI.Or(""))
		if owner := migOwner(*all, uuid, pci); owner != nil {
			owner.cuda = append(owner.cuda, d)
			continue
		}
		if uuid != "" {
			uuid = "GPU-" + uuid
		}
		u := claim(uuid, pci)
		u.cuda = append(u.cuda, d)
	}
}

// migOwner finds the GPU whose MIG device has this UUID.
func migOwner(all []*unit, uuid, pci string) *unit {
	for _, u := range all {
		if u.nvml == nil || !u.nvml.MIG.Current.Or(false) {
			continue
		}
		for _, m := range u.nvml.MIG.Devices {
			if uuid != "" && bare(m.UUID.Or("")) == bare(uuid) {
				return u
			}
		}
		// Before R470 a MIG device's name holds its GPU's UUID, so only the place tells.
		if pci != "" && u.pci == pci && bare(u.uuid) != bare(uuid) {
			return u
		}
	}
	return nil
}

// joinBus adds the kernel module's folders and the bus. A display controller that no driver source knows is a unit of its
// own, unless there is a GPU without a place that it must be.
func joinBus(f *Facts, all *[]*unit, claim func(uuid, pci string) *unit) {
	for i := range f.Driver.GPUs {
		g := &f.Driver.GPUs[i]
		if u := byPlace(*all, g.BusID); u != nil {
			u.driver = g
			if u.uuid == "" {
				u.uuid = g.UUID
			}
			continue
		}
		claimOrLost(*all, g.UUID, g.BusID, claim).driver = g
	}
	for i := range f.PCI.Devices {
		d := &f.PCI.Devices[i]
		if u := byPlace(*all, d.BusID); u != nil {
			u.bus = d
			continue
		}
		claimOrLost(*all, "", d.BusID, claim).bus = d
	}
}

func byPlace(all []*unit, pci string) *unit {
	for _, u := range all {
		if u.pci == pci {
			return u
		}
	}
	return nil
}

// claimOrLost gives the place to the one lost GPU without a place, where there is exactly one.
func claimOrLost(all []*unit, uuid, pci string, claim func(uuid, pci string) *unit) *unit {
	var lost []*unit
	for _, u := range all {
		if u.nvml != nil && !u.nvml.Handle.OK() && u.pci == "" {
			lost = append(lost, u)
		}
	}
	if len(lost) == 1 {
		lost[0].uuid, lost[0].pci = uuid, pci
		return lost[0]
	}
	return claim(uuid, pci)
}

// name is what a finding calls the GPU.
func (u *unit) name() string {
	if u.uuid != "" {
		return u.uuid
	}
	return u.pci
}

// migEnabled reports whether MIG mode is on, by NVML or else by nvidia-smi.
func (u *unit) migEnabled() bool {
	if u.nvml != nil && u.nvml.MIG.Current.OK() {
		return *u.nvml.MIG.Current.Value
	}
	return u.smi != nil && strings.EqualFold(u.smi.MIGCurrent.Or(""), "enabled")
}
