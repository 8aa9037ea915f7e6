package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a program has used.
type Usage struct {
	// CPU is the processor time, user's and system's.
	CPU time.Duration
	// Memory is in bytes: VmRSS of one process. Of several processes it is the sum
	// of their proportional shares (Pss), so that what they share counts once.
	Memory int64
	// FileMemory is the part of Memory that one process has of mapped files, above all
	// of its own program (RssFile): pages that processes share and the kernel may drop.
	// It is 0 for several processes.
	FileMemory int64
}

// Usage is what the program has used so far.
func (p *Process) Usage() (Usage, error) { return ProcessUsage(p.cmd.Process.Pid) }

// ProcessUsage is what a process has used so far, without its children.
func ProcessUsage(pid int) (Usage, error) {
	cpu, err := cpuTime(pid)
	if err != nil {
		return Usage{}, err
	}
	memory, err := memoryLine(pid, "status", "VmRSS:")
	if err != nil {
		return Usage{}, err
	}
	file, err := memoryLine(pid, "status", "RssFile:")
	return Usage{CPU: cpu, Memory: memory, FileMemory: file}, err
}

// cpuTime reads the processor clock of a process, which /proc rounds to 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	// MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of Linux' posix-timers.
	const clockSched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|clockSched), &t); err != nil {
		return 0, fmt.Errorf("processor clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// TreeUsage is what a process, all its descendants, and the children that have ended
// have used so far.
func TreeUsage(pid int) (Usage, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return Usage{}, err
	}
	children := map[int][]processStat{}
	for _, dir := range dirs {
		id, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return Usage{}, err
		}
		// A process may end while we look.
		if stat, err := readStat(id); err == nil {
			children[stat.parent] = append(children[stat.parent], stat)
		}
	}
	root, err := readStat(pid)
	if err != nil {
		return Usage{}, err
	}
	var all Usage
	for todo := []processStat{root}; len(todo) > 0; todo = todo[1:] {
		// A process may end while we look. Its parent counts it later.
		if cpu, err := cpuTime(todo[0].pid); err == nil {
			all.CPU += cpu
		}
		all.CPU += todo[0].ended
		if memory, err := memoryLine(todo[0].pid, "smaps_rollup", "Pss:"); err == nil {
			all.Memory += memory
		}
		todo = append(todo, children[todo[0].pid]...)
	}
	return all, nil
}

// processStat is what /proc/PID/stat says of a process.
type processStat struct {
	pid, parent int
	// ended is the processor time of the children that it has waited for.
	ended time.Duration
}

func readStat(pid int) (processStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processStat{}, err
	}
	// The name in parentheses may hold anything. ppid is field 4 of the line,
	// cutime and cstime are 16 and 17, in ticks of 10 ms (proc_pid_stat(5)).
	line := string(text)
	fields := strings.Fields(line[strings.LastIndex(line, ")")+1:])
	if len(fields) < 15 {
		return processStat{}, errors.New("/proc/PID/stat is too short")
	}
	var n [3]int64
	for i, f := range []string{fields[1], fields[13], fields[14]} {
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return processStat{}, err
		}
	}
	const tick = 10 * time.Millisecond
	return processStat{pid, int(n[0]), time.Duration(n[1]+n[2]) * tick}, nil
}

// memoryLine reads a line of a file in /proc/PID, in bytes.
func memoryLine(pid int, file, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/PID/%s", name, file)
}

// WrittenBytes is how many bytes the program has caused to be written to the disk
// (write_bytes of proc_pid_io(5)): each page of a file once for each time that it was
// changed after it had been written back.
func (p *Process) WrittenBytes() (int64, error) { return WrittenBytes(p.cmd.Process.Pid) }

// WrittenBytes is how many bytes a process has caused to be written to the disk.
func WrittenBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "write_bytes:"); ok {
			return strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
		}
	}
	return 0, fmt.Errorf("no write_bytes in /proc/%d/io", pid)
}

// PID is the program's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }
