package migrations_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"byre/migrations"
)

// WithSchema returns an endpoint that names the schema and is otherwise the same, for every name and
// every form of endpoint.
func TestWithSchema_NamesTheSchema(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{
		"postgres://u:p%40ss@h1:5433,h2/db", "postgres://u@h/db?sslmode=disable&pool_max_conns=3",
		"host=h user=u dbname=db password='p ss'",
	} {
		before, err := migrations.ParseDSN(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		for _, schema := range []string{"cp1", "Upper", `with "quotes" and 'apostrophes'`, `back\slash`, "a,b", "ümläut",
			"a&b=c?d#e", "select"} {
			dsn, err := migrations.WithSchema(endpoint, schema)
			if err != nil {
				t.Errorf("%s, %s: %v", endpoint, schema, err)
				continue
			}
			config, err := migrations.ParseDSN(dsn)
			if err != nil {
				t.Errorf("%s: %v", dsn, err)
				continue
			}
			if got := migrations.SchemaName(config.ConnConfig); got != schema {
				t.Errorf("%s: schema %q, want %q", dsn, got, schema)
			}
			if config.ConnConfig.Password != before.ConnConfig.Password ||
				config.ConnConfig.Database != before.ConnConfig.Database ||
				migrations.Address(config.ConnConfig) != migrations.Address(before.ConnConfig) ||
				config.MaxConns != before.MaxConns {
				t.Errorf("%s is another endpoint than %s", dsn, endpoint)
			}
			if again, err := migrations.WithSchema(dsn, schema); err != nil || again != dsn {
				t.Errorf("a second time: %s, %v", again, err)
			}
		}
	}
}

func TestWithSchema_Refuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ endpoint, schema, want string }{
		{"postgres://h/db", "", "1 to 63 bytes"},
		{"postgres://h/db", strings.Repeat("x", 64), "1 to 63 bytes"},
		{"postgres://h/db", "pg_mine", "PostgreSQL's own"},
		{"postgres://h/db?search_path=a,b", "b", "does not begin with"},
		{"postgres://u:secret@h/db?sslmode=wrong", "a", "sslmode"},
	} {
		dsn, err := migrations.WithSchema(test.endpoint, test.schema)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s, %q: %q, %v", test.endpoint, test.schema, dsn, err)
		}
	}
}

// Schema returns the first schema of the search_path, in which the server creates objects.
func TestSchema_IsTheFirstOfTheSearchPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"": "", "cp1": "cp1", "Cp1": "cp1", ` "Cp1" , public`: "Cp1", `"a""b",c`: `a"b`, "a,b": "a", `"$user",public`: "",
		"$user": "",
	} {
		config, err := migrations.ParseDSN("host=h search_path='" + path + "'")
		if err != nil {
			t.Fatal(err)
		}
		if got := migrations.SchemaName(config.ConnConfig); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestRefreshCredentials_ReadsFilesAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, dsn := range []string{
		"postgres://user@127.0.0.1:1/database?passwordfile=" + path,
		"host=127.0.0.1 port=1 user=user dbname=database password=shadowed passwordfile=" + path,
	} {
		write("first\n")
		pool, err := migrations.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		config := pool.ConnConfig
		if _, sent := config.RuntimeParams["passwordfile"]; sent || config.Password != "first" {
			t.Errorf("the password is %q, and the parameter is sent: %v", config.Password, sent)
		}
		write("a:token with \\ and spaces\r\n")
		if err := pool.BeforeConnect(t.Context(), config); err != nil || config.Password != "a:token with \\ and spaces" {
			t.Errorf("the next password is %q: %v", config.Password, err)
		}
	}
}

func TestRefreshCredentials_NamesTheFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for _, parameter := range []string{"passwordfile=" + missing, "sslcert=" + missing + "&sslkey=" + missing,
		"sslrootcert=" + missing} {
		pool, err := migrations.ParseDSN("postgres://user:hidden@127.0.0.1:1/database")
		if err != nil {
			t.Fatal(err)
		}
		err = migrations.RefreshCredentials("postgres://user:hidden@127.0.0.1:1/database?"+parameter, pool.ConnConfig)
		if err == nil || !strings.HasPrefix(err.Error(), "PostgreSQL at 127.0.0.1:1: ") ||
			!strings.Contains(err.Error(), missing) ||
			!strings.HasSuffix(err.Error(), ": correct the file that the endpoint names") ||
			strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", parameter, err)
		}
		// Explain returns an error that is explained already unchanged.
		if again := migrations.Explain(pool.ConnConfig, err); again.Error() != err.Error() {
			t.Errorf("explained again it is %v", again)
		}
	}
}

// TestRefreshCredentials_KeepsTheHostsOfTheStart: the service file that an endpoint names changes while the program
// runs.
func TestRefreshCredentials_KeepsTheHostsOfTheStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("[byre]\nuser=byre\ndbname=byre\nport=1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("host=127.0.0.1,127.0.0.2,127.0.0.3\nsslmode=require\npassword=first\n")
	pool, err := migrations.ParseDSN("service=byre servicefile=" + path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"host=127.0.0.2\nsslmode=require\n",
		"host=127.0.0.1,127.0.0.2,127.0.0.3\nsslmode=disable\n"} {
		write(text + "password=next\n")
		config := pool.ConnConfig.Copy()
		if err := pool.BeforeConnect(t.Context(), config); err != nil || config.Password != "next" ||
			len(config.Fallbacks) != 2 {
			t.Errorf("%q: %v, %d other hosts", text, err, len(config.Fallbacks))
		}
	}
}

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
			backend.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42704",
				Message: "unrecognized configuration parameter"})
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

// Pgpool-II is refused before anything else is asked, which it may pass on to a standby. Something else between is
// asked once.
func TestPgpool_IsRefused(t *testing.T) {
	t.Parallel()
	const port, status, readOnly = `SELECT inet_client_port()`, `SHOW POOL_STATUS`, `show transaction_read_only`
	for name, c := range map[string]struct {
		status [][]string
		asked  []string
	}{
		"another pooler": {nil, []string{port, status, readOnly, readOnly}},
		"Pgpool-II":      {[][]string{{"port", "9999", ""}}, []string{port, status, port, status}},
	} {
		t.Run(name, func(t *testing.T) {
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
				if err == nil {
					conn.Close(t.Context())
				}
				if (err != nil) != (c.status != nil) {
					t.Errorf("connected: %v", err)
				}
				if err == nil {
					continue
				}
				explained := migrations.Explain(config.ConnConfig, err).Error()
				if !strings.Contains(explained, ": the connection leads through Pgpool-II, ") || strings.Contains(explained, "\n") {
					t.Error(explained)
				}
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
		p := &fakePooler{answers: map[string][][]string{`SELECT inet_client_port()`: {{"1"}},
			`show transaction_read_only`: {{"off"}}}, asked: make(chan string, 16)}
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
