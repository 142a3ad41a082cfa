//go:build !linux

package main

import (
	"os/exec"
	"syscall"
	"time"
)

// CPU times are read where the kernel shows them; elsewhere they are 0, "not known".
func cpuOf(int) time.Duration                 { return 0 }
func cpuOfTree(int) time.Duration             { return 0 }
func cpuOfGrandchildren(string) time.Duration { return 0 }

func usage() (all, us time.Duration) { return 0, 0 }

func nap(d time.Duration) { time.Sleep(d) }

func dieWithUs(*exec.Cmd) {}

func inMemory(string) bool { return false }

func memoryOf(int) int64    { return 0 }
func descriptorsOf(int) int { return 0 }

func narrow(_, _ string, _ syscall.RawConn) error { return nil }
