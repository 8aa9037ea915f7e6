package migrations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Timeline is where a primary writes: the system identifier of its data, which a standby shares, and the number of the
// timeline, which a promotion raises. The zero value is not known.
type Timeline struct {
	System string
	Number int64
}

// SelectTimeline selects the Timeline of a primary. The name of a segment of the write-ahead log begins with the
// timeline; the control file has the new one only after the checkpoint that follows a promotion.
const SelectTimeline = `
SELECT system_identifier::text, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int::text
FROM pg_control_system()`

// refusalTime is how long a refused primary counts as one that is there. The connections of a pool are made again
// within an hour, and show whether it is.
const refusalTime = time.Hour

// Primaries remembers which primaries a process has met.
//
// Invariant: a process never follows a system to a lower timeline than it has met. Such a primary was replaced by a
// standby, and has come back: it lacks what was acknowledged since, and its own commits are lost once it is made a
// standby. Each new connection is checked, and refused, so that pgx tries the next host.
type Primaries struct {
	log *slog.Logger

	mu sync.Mutex
	// highest has the highest timeline of each system.
	highest map[string]int64
	// refused has the addresses of the primaries that were refused, and when they were last.
	refused map[string]time.Time
}

// FollowPrimaries has new connections of config refused that lead to a primary of a lower timeline. If the endpoint has
// several hosts, it asks all of them first, each for up to connect_timeout.
func FollowPrimaries(ctx context.Context, config *pgx.ConnConfig, log *slog.Logger) *Primaries {
	p := &Primaries{log: log, highest: map[string]int64{}, refused: map[string]time.Time{}}
	p.ask(ctx, config)
	validate := config.ValidateConnect
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		address := conn.Conn().RemoteAddr().String()
		if err := validate(ctx, conn); err != nil {
			if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) {
				p.forget(address)
			}
			return err
		}
		timeline, err := readTimeline(ctx, conn)
		if err != nil {
			return err
		}
		return p.Check(address, timeline)
	}
	return p
}

// ask learns the timelines of all primaries of an endpoint.
func (p *Primaries) ask(ctx context.Context, config *pgx.ConnConfig) {
	hosts := hostsOf(ctx, config)
	if len(hosts) < 2 {
		return
	}
	addresses, timelines := make([]string, len(hosts)), make([]Timeline, len(hosts))
	var asking sync.WaitGroup
	for i, host := range hosts {
		asking.Go(func() {
			conn, err := pgx.ConnectConfig(ctx, host)
			if err != nil {
				return // a standby, or nobody: who connects to it says so
			}
			defer conn.Close(ctx)
			addresses[i] = conn.PgConn().Conn().RemoteAddr().String()
			timelines[i], _ = readTimeline(ctx, conn.PgConn()) // then it is not known
		})
	}
	asking.Wait()
	for range 2 { // first the highest, and then those that are lower
		for i, t := range timelines {
			_ = p.Check(addresses[i], t)
		}
	}
}

// hostsOf returns a configuration for each address of an endpoint.
func hostsOf(ctx context.Context, config *pgx.ConnConfig) (hosts []*pgx.ConnConfig) {
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}},
		config.Fallbacks...)
	for i, host := range all {
		isSame := func(other *pgconn.FallbackConfig) bool { return other.Host == host.Host && other.Port == host.Port }
		if slices.IndexFunc(all, isSame) < i { // the same host with another sslmode
			continue
		}
		addresses := []string{host.Host}
		if !strings.HasPrefix(host.Host, "/") {
			addresses, _ = config.LookupFunc(ctx, host.Host) // who connects to it says why it is not known
		}
		for _, address := range addresses {
			one := config.Copy()
			one.Host, one.Port, one.TLSConfig, one.Fallbacks = host.Host, host.Port, host.TLSConfig, nil
			for _, other := range all[i+1:] {
				if isSame(other) {
					one.Fallbacks = append(one.Fallbacks, other)
				}
			}
			one.LookupFunc = func(context.Context, string) ([]string, error) { return []string{address}, nil }
			hosts = append(hosts, one)
		}
	}
	return hosts
}

// readTimeline returns the Timeline of a primary; the zero value where the server does not tell it.
func readTimeline(ctx context.Context, conn *pgconn.PgConn) (t Timeline, err error) {
	rows, err := query(ctx, conn, SelectTimeline)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused):
		return t, nil
	case err != nil:
		return t, err
	}
	t.System = string(rows[0][0])
	t.Number, err = strconv.ParseInt(string(rows[0][1]), 10, 64)
	return t, err
}

// Check fails if a primary is on a lower timeline than one that this process has met.
func (p *Primaries) Check(address string, t Timeline) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	highest := p.highest[t.System]
	if t == (Timeline{}) || t.Number >= highest {
		p.highest[t.System] = max(highest, t.Number)
		delete(p.refused, address)
		return nil
	}
	err := fmt.Errorf(
		"two primaries: this one is on timeline %d, and byre has met timeline %d of the same system, so that a standby "+
			"was promoted in its place: stop it and make it a standby (pg_rewind), or start byre again if you have restored it on purpose",
		t.Number, highest)
	if time.Since(p.refused[address]) > refusalTime {
		p.log.Error("postgres: "+err.Error(), "server", address)
	}
	p.refused[address] = time.Now()
	return err
}

func (p *Primaries) forget(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.refused, address)
}

// Refused returns how many primaries were refused within the last hour, and have not become standbys since.
func (p *Primaries) Refused() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.refused {
		if time.Since(at) <= refusalTime {
			n++
		}
	}
	return n
}
