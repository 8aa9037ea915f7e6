package migrations_test

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"byre/migrations"
)

// fakePooler answers each statement of a connection with rows, or with an error where it has none.
type fakePooler struct {
	answers map[string][][]string
	asked   chan string
	// lacks is how many connections are refused because there is no such database.
	lacks atomic.Int32
}

func (p *fakePooler) start(t *testing.T) (dsn string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return "postgres://byre@" + listener.Addr().String() + "/byre?sslmode=disable"
}

func (p *fakePooler) serve(conn net.Conn) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	if p.lacks.Add(-1) >= 0 {
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "3D000", Message: `database "byre" does not exist`})
		_ = backend.Flush()
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	for {
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
		message, err := backend.Receive()
		query, ok := message.(*pgproto3.Query)
		if err != nil || !ok {
			return
		}
		p.asked <- query.String
		rows, isKnown := p.answers[query.String]
		if !isKnown {
			backend.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42704", Message: "unrecognized configuration parameter"})
			continue
		}
		backend.Send(&pgproto3.RowDescription{Fields: make([]pgproto3.FieldDescription, len(rows[0]))})
		for _, row := range rows {
			values := make([][]byte, len(row))
			for i, value := range row {
				values[i] = []byte(value)
			}
			backend.Send(&pgproto3.DataRow{Values: values})
		}
		backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")})
	}
}

// A Pgpool-II that may read from a standby is refused before anything else is asked, which it may pass on to
// the standby. Something else between is asked once.
func TestPgpool_IsCheckedFirst(t *testing.T) {
	t.Parallel()
	const port, status, readOnly = `SELECT inet_client_port()`, `SHOW POOL_STATUS`, `show transaction_read_only`
	pgpool := func(clustering, balances, caches string) [][]string {
		return [][]string{
			{"port", "9999", ""}, {"backend_clustering_mode", clustering, ""},
			{"load_balance_mode", balances, ""}, {"memory_cache_enabled", caches, ""},
		}
	}
	for _, c := range []struct {
		name     string
		status   [][]string
		refused  string
		isPgpool bool
		asked    []string
	}{
		{name: "another pooler", asked: []string{port, status, readOnly, readOnly}},
		{
			name: "Pgpool-II", status: pgpool("1", "0", "0"), isPgpool: true,
			asked: []string{port, status, readOnly, port, status, readOnly},
		},
		{name: "it balances", status: pgpool("streaming_replication", "on", "off"), refused: "load_balance_mode of Pgpool-II is on, "},
		{name: "it caches", status: pgpool("1", "0", "1"), refused: "memory_cache_enabled of Pgpool-II is 1, "},
		{name: "it writes to all", status: pgpool("2", "0", "0"), refused: "backend_clustering_mode of Pgpool-II is 2, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := &fakePooler{answers: map[string][][]string{port: {{"1"}}, readOnly: {{"off"}}}, asked: make(chan string, 16)}
			if c.status != nil {
				p.answers[status] = c.status
			}
			config, err := migrations.ParseDSN(p.start(t))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				conn, err := pgx.ConnectConfig(t.Context(), config.ConnConfig)
				if c.refused != "" {
					explained := migrations.Explain(config.ConnConfig, err)
					if err == nil || !strings.Contains(explained.Error(), ": "+c.refused) || strings.Contains(explained.Error(), "\n") {
						t.Fatal("connected: ", explained)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if is := migrations.LeadsToPgpool(conn.PgConn()); is != c.isPgpool {
					t.Errorf("leads to Pgpool-II: %v", is)
				}
				conn.Close(t.Context())
			}
			for i, want := range c.asked {
				if asked := <-p.asked; asked != want {
					t.Errorf("question %d is %q, want %q", i, asked, want)
				}
			}
		})
	}
}

// A standby among several hosts may not have the new database yet. A single host without it is refused at once.
func TestConnect_WaitsUntilAStandbyHasTheDatabase(t *testing.T) {
	t.Parallel()
	for others, isRefused := range map[string]bool{",127.0.0.1:1": false, "": true} {
		p := &fakePooler{answers: map[string][][]string{`SELECT inet_client_port()`: {{"1"}}, `show transaction_read_only`: {{"off"}}}, asked: make(chan string, 16)}
		p.lacks.Store(2)
		config, err := migrations.ParseDSN(strings.Replace(p.start(t), "/byre?", others+"/byre?", 1))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := migrations.Connect(t.Context(), config.ConnConfig)
		if (err != nil) != isRefused {
			t.Errorf("with the other hosts %q: %v", others, err)
		}
		if err == nil {
			conn.Close(t.Context())
		}
	}
}
