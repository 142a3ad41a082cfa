package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// clockTick is the unit of times in /proc, the same on every Linux.
const clockTick = 10 * time.Millisecond

// cpuTimes is what the kernel has booked to a process: its own time and that of its children who
// are gone.
func cpuTimes(pid int) (parent int, own, gone time.Duration, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	// The fields from the third on, after the name, which may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return 0, 0, 0, fmt.Errorf("/proc/%d/stat: %.100q", pid, text)
	}
	value := func(i int) time.Duration {
		n, nerr := strconv.ParseInt(string(fields[i]), 10, 64)
		if nerr != nil {
			err = nerr
		}
		return time.Duration(n)
	}
	parent = int(value(1))
	own = (value(11) + value(12)) * clockTick
	gone = (value(13) + value(14)) * clockTick
	return parent, own, gone, err
}

// cpuOf is the CPU time of a process so far, 0 if it is gone.
func cpuOf(pid int) time.Duration {
	_, own, _, err := cpuTimes(pid)
	if err != nil {
		return 0
	}
	return own
}

// cpuOfTree is the CPU time of a process and its children so far, those that are gone included.
func cpuOfTree(pid int) time.Duration {
	_, own, gone, err := cpuTimes(pid)
	if err != nil {
		return 0
	}
	sum := own + gone
	for child, parent := range parents() {
		if parent == pid {
			sum += cpuOf(child)
		}
	}
	return sum
}

// usage is the CPU time so far of all processes of the machine, and of us and those we started.
func usage() (all, us time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	for i, field := range bytes.Fields(line) { // cpu user nice system idle iowait irq softirq steal
		if n, _, ok := number(field); ok && i != 4 && i != 5 && i < 9 {
			all += time.Duration(n) * clockTick
		}
	}
	tree := parents()
	ours := func(pid int) bool {
		for pid > 1 && pid != os.Getpid() {
			pid = tree[pid]
		}
		return pid > 1
	}
	for pid := range tree {
		if ours(pid) {
			_, own, gone, _ := cpuTimes(pid) // a process that has just gone counts with its parent
			us += own + gone
		}
	}
	return all, us
}

// cpuOfGrandchildren is the CPU time so far of the processes with a name that a shell of ours has
// started, which is how devenv does it.
func cpuOfGrandchildren(name string) (sum time.Duration) {
	all := parents()
	for pid, parent := range all {
		if all[parent] != os.Getpid() {
			continue
		}
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(bytes.TrimSpace(text)) == name {
			sum += cpuOf(pid)
		}
	}
	return sum
}

// parents has the parent of every process.
func parents() map[int]int {
	all := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err) // the pattern is fixed
	}
	for _, path := range stats {
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			if parent, _, _, err := cpuTimes(pid); err == nil {
				all[pid] = parent
			}
		}
	}
	return all
}

// nap is a sleep that is as short as it should be: time.Sleep may take a millisecond more, which
// would be counted as the server's.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}

// dieWithUs lets the kernel end the command when we are gone in whatever way.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// inMemory says whether a folder is on a file system that forgets with the power, where commits
// cost nothing.
func inMemory(folder string) bool {
	var fs syscall.Statfs_t
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	return syscall.Statfs(folder, &fs) == nil && (uint32(fs.Type) == tmpfs || uint32(fs.Type) == ramfs)
}

// memoryOf is how much memory a process holds that is backed by no file, in bytes: its heap, its
// stacks and what its runtime needs for them.
func memoryOf(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(text, []byte("RssAnon:"))
	kib, _, _ := number(bytes.TrimLeft(after, " \t"))
	return kib << 10
}

// descriptorsOf is how many files and sockets a process has open.
func descriptorsOf(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(entries)
}

// narrow lets a connection to be hold little on its way, so that a peer who does not read is noticed
// soon: small segments, which the other side's buffer is reckoned in, and a small window.
func narrow(_, _ string, c syscall.RawConn) error {
	var serr error
	err := c.Control(func(fd uintptr) {
		serr = errors.Join(
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536),
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096))
	})
	return errors.Join(err, serr)
}
