package bounded

import (
	"bytes"
	"os"
	"strconv"
)

// processState returns the state letter of proc(5)'s stat file: the field after the last closing bracket, since a program's
// name may hold brackets.
func processState(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return ""
	}
	return string(stat[i+2 : i+3])
}
