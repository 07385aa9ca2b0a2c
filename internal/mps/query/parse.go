package query

import (
	"encoding/csv"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"cotenant/internal/observe"
)

var versionText = regexp.MustCompile(`(?i)binary version:?\s*(\d{1,9})`)

// ParseVersion reads the binary version of `-v`: "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000".
func ParseVersion(text string) (int, bool) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	v, err := strconv.Atoi(m[1])
	return v, err == nil
}

// ParseServerList reads get_server_list: a pid a line, nothing where no server runs. ok is false where the text is anything
// else.
func ParseServerList(text string) (pids []int, ok bool) {
	pids = []int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		pid, err := strconv.ParseInt(line, 10, 32)
		if err != nil || pid <= 0 {
			return nil, false
		}
		pids = append(pids, int(pid))
	}
	return pids, true
}

// ParsePercentage reads get_default_active_thread_percentage: "100.0".
func ParsePercentage(text string) (float64, bool) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "%"), 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > 100 {
		return 0, false
	}
	return v, true
}

// Client is a row of `ps`.
type Client struct {
	PID    int    `json:"pid"`
	ID     string `json:"id"`
	Server int    `json:"server"`
	// Device is a prefix of the GPU's UUID.
	Device    string `json:"device"`
	Namespace string `json:"namespace"`
	Command   string `json:"command"`
}

// ParseProcesses reads `ps`: a header "PID ID SERVER DEVICE NAMESPACE COMMAND" and a row a client. ok is false without that
// header; rows that don't fit it are dropped.
func ParseProcesses(text string) (clients []Client, ok bool) {
	clients = []Client{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if !ok {
			ok = len(f) >= 5 && f[0] == "PID" && f[1] == "ID" && f[2] == "SERVER"
			continue
		}
		if len(f) < 5 {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		server, err2 := strconv.Atoi(f[2])
		if err != nil || err2 != nil {
			continue
		}
		clients = append(clients, Client{pid, f[1], server, f[3], f[4], strings.Join(f[5:], " ")})
	}
	return clients, ok
}

// DeviceRow is a row of `device_query --csv`.
type DeviceRow struct {
	Section    string `json:"section"` // "Default" or "Server 483"
	Ordinal    int    `json:"ordinal"`
	PCI        string `json:"pci"` // as printed, such as 0000:00.06.00
	UUID       string `json:"uuid"`
	Name       string `json:"name"`
	Attributes string `json:"attributes"`
}

// ParseDeviceQuery reads `device_query --csv`: a section line, a header, a row a device. A name may hold commas; the rest
// doesn't, save attributes at the end.
func ParseDeviceQuery(text string) (rows []DeviceRow, ok bool) {
	rows = []DeviceRow{}
	section, header := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case strings.HasPrefix(line, "Device Ordinal,"):
			header, ok = true, true
			continue
		case !strings.Contains(line, ","):
			section, header = line, false
			continue
		case !header:
			continue
		}
		f := strings.Split(line, ",")
		n := len(f)
		ordinal, err := strconv.Atoi(strings.TrimSpace(f[0]))
		if n < 5 || err != nil {
			continue
		}
		rows = append(rows, DeviceRow{section, ordinal, f[1], f[2], strings.Join(f[3:n-1], ","), f[n-1]})
	}
	return rows, ok
}

// Partition is a row of `lspart`. What a shape of the table lacks, or prints as "-", is absent.
type Partition struct {
	GPU        string             `json:"gpu"` // UUID or a prefix
	ID         string             `json:"id,omitempty"`
	FreeChunks observe.Value[int] `json:"free_chunks"`
	UsedChunks observe.Value[int] `json:"used_chunks"`
	FreeSMs    observe.Value[int] `json:"free_sms"`
	UsedSMs    observe.Value[int] `json:"used_sms"`
	Clients    string             `json:"clients,omitempty"`
}

// ParsePartitions reads `lspart`. Two shapes are known. The documented one has seven columns: GPU, partition, free and used
// chunks, free and used SMs, clients, with "-" where one has no meaning. The other has five: a GPU's row is GPU, free and used
// chunks, free and used SMs; a partition's is GPU, id, used chunks, used SMs, clients. SMs are not chunks times a constant: a GPU
// of 132 SMs lists 15 chunks of 8 and 132 SMs. ok is false where no header is found.
func ParsePartitions(text string) (rows []Partition, ok bool) {
	rows = []Partition{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if f[0] == "GPU" {
			ok = true
			continue
		}
		if !ok || f[0] == "chunk" || f[0] == "chunks" {
			continue
		}
		if row, good := partitionRow(f); good {
			rows = append(rows, row)
		}
	}
	return rows, ok
}

func partitionRow(f []string) (Partition, bool) {
	bad := false
	count := func(s string) observe.Value[int] {
		if s == "-" {
			return observe.None[int]("", 0, "not applicable")
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			bad = true
		}
		return observe.Got("", n)
	}
	none := observe.None[int]("", 0, "not in this shape of the table")
	var p Partition
	switch {
	case len(f) == 7:
		p = Partition{f[0], strings.TrimPrefix(f[1], "-"), count(f[2]), count(f[3]), count(f[4]), count(f[5]), strings.TrimPrefix(f[6], "-")}
	case len(f) == 5 && isNumber(f[1]) && isNumber(f[4]):
		p = Partition{f[0], "", count(f[1]), count(f[2]), count(f[3]), count(f[4]), ""}
	case len(f) == 5:
		p = Partition{f[0], f[1], none, count(f[2]), none, count(f[3]), f[4]}
	default:
		return p, false
	}
	return p, !bad
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

// V3Server is a row of protocol 3's `server list`.
type V3Server struct {
	Name   string `json:"name"`
	UID    int    `json:"uid"`
	PID    int    `json:"pid"` // 0 where it doesn't run
	State  string `json:"state"`
	Folder string `json:"folder"`
	// Rest is what follows: allowed devices, whose list may itself hold commas, and attributes.
	Rest string `json:"rest"`
}

// ParseV3Servers reads `server list --format=csv,noheader`: "training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-".
// ok is false where a line has another shape.
func ParseV3Servers(text string) (servers []V3Server, ok bool) {
	servers = []V3Server{}
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord, r.LazyQuotes = -1, true
	for {
		f, err := r.Read()
		if err == io.EOF {
			return servers, true
		}
		if err != nil || len(f) < 5 {
			return nil, false
		}
		uid, err := strconv.Atoi(strings.TrimSpace(f[1]))
		if err != nil {
			return nil, false
		}
		pid, err := strconv.Atoi(strings.TrimSpace(f[2]))
		if err != nil && strings.TrimSpace(f[2]) != "-" {
			return nil, false
		}
		servers = append(servers, V3Server{strings.TrimSpace(f[0]), uid, pid, strings.TrimSpace(f[3]), strings.TrimSpace(f[4]),
			strings.Join(f[5:], ",")})
	}
}
