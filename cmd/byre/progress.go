package main

import (
	"fmt"
	"io"
	"iter"
	"time"

	"k8s.io/component-base/term"

	"byre/sqlstore"
)

const (
	// rowsOnTerminal and secondsOnTerminal are how often a terminal shows how many rows were
	// read, and how many seconds have passed. It has one line, which is replaced; elsewhere
	// each time adds a line, every sqlstore.ReportInLog.
	rowsOnTerminal, secondsOnTerminal = 200 * time.Millisecond, time.Second
	progressBarWidth                  = 30
)

// progress tells an operator how far a command is that reads or writes a whole store, or
// migrates it.
type progress struct {
	out        io.Writer
	isTerminal bool
	clock      func() time.Time
	start      time.Time
	last       time.Time

	work        string
	rows, total int64
	bytes       int64
}

// newProgress returns a progress that writes to out how far the work is. It writes nothing
// in the first sqlstore.ReportAfter. work is a phrase such as "backing up".
func newProgress(out io.Writer, work string) *progress {
	p := &progress{out: out, work: work, clock: time.Now}
	_, _, err := term.TerminalSize(out)
	p.isTerminal = err == nil
	p.start = p.clock()
	return p
}

// begin begins another part of the work.
func (p *progress) begin(work string) { p.work, p.rows, p.total, p.bytes = work, 0, 0, 0 }

// follow returns the snapshot and counts the rows that are read from it.
func (p *progress) follow(s sqlstore.Snapshot) sqlstore.Snapshot {
	p.total = max(s.ObjectCount, 0) + s.Revision - s.Compacted
	s.Objects = countRows(p, s.Objects, func(r *sqlstore.ObjectRow) int { return len(r.Value) })
	s.Changes = countRows(p, s.Changes, func(r *sqlstore.ChangeRow) int { return len(r.Value) })
	return s
}

func countRows[T any](p *progress, rows iter.Seq2[*T, error], size func(*T) int) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for row, err := range rows {
			if err == nil {
				p.add(size(row))
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// add counts one row.
func (p *progress) add(bytes int) {
	p.rows++
	p.bytes += int64(bytes)
	p.showDue(p.line)
}

// showDue shows a line if it is time for one.
func (p *progress) showDue(line func() string) {
	now := p.clock()
	pause := sqlstore.ReportInLog
	if p.isTerminal {
		pause = rowsOnTerminal
	}
	if now.Sub(p.start) < sqlstore.ReportAfter || now.Sub(p.last) < pause {
		return
	}
	p.show(line(), now)
}

func (p *progress) show(line string, now time.Time) {
	p.last = now
	if p.isTerminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}

// showElapsed shows what work returns, and how long the command has worked, until stop is called.
// It is for work whose rows are not counted: nothing else of p is called meanwhile.
func (p *progress) showElapsed(work func() string) (stop func()) {
	every := sqlstore.ReportInLog
	if p.isTerminal {
		every = secondsOnTerminal
	}
	return sqlstore.ReportElapsed(sqlstore.ReportAfter-p.clock().Sub(p.start), every, func(time.Duration) {
		now := p.clock()
		p.show(fmt.Sprintf("%s, %d s", work(), now.Sub(p.start)/time.Second), now)
	})
}

// line returns the progress as text, such as
// "backing up [####......] 41%, 120000 rows, 310 MiB".
func (p *progress) line() string {
	return fmt.Sprintf("%s %s%d rows, %d MiB", p.work, progressBar(p.rows, p.total), p.rows, p.bytes>>20)
}

// progressBar returns text such as "[####......] 41%, "; it is empty if total is not known.
func progressBar(done, total int64) string {
	if total <= 0 {
		return ""
	}
	share := min(float64(done)/float64(total), 1)
	full := int(share * progressBarWidth)
	return fmt.Sprintf("[%-*s] %.0f%%, ", progressBarWidth, "##############################"[:full], share*100)
}

// end removes the line from a terminal.
func (p *progress) end() {
	if p.isTerminal && !p.last.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
