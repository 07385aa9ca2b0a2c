// Package mps starts and ends an MPS control daemon of this program's own, in a private pipe folder, and changes partitions and
// limits through it. It never speaks to another's daemon: a Daemon is only made by Start. What only asks is in mps/query.
package mps
