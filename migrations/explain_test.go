package migrations

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The server's messages have the language of lc_messages. What is wrong with the role of the endpoint
// is told from pg_hba.conf's refusal, which has the same code, in every language.
func TestExplain_RoleInOtherLanguages(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig("postgres://nobody@localhost/d")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ routine, message, want string }{
		{"InitializeSessionUserId", "Rolle »nobody« existiert nicht", `CREATE ROLE "nobody" LOGIN`},
		{"InitializeSessionUserId", "Rolle »nobody« hat keine Berechtigung zum Einloggen", `ALTER ROLE "nobody" LOGIN`},
		{"ClientAuthentication", "kein pg_hba.conf-Eintrag für Host »::1«",
			"allow the user, host and database in pg_hba.conf"},
	} {
		text := Explain(config,
			&pgconn.PgError{Code: codeInvalidAuthorization, Routine: test.routine, Message: test.message}).Error()
		if !strings.Contains(text, test.message) || !strings.Contains(text, test.want) {
			t.Errorf("%s lacks %s", text, test.want)
		}
	}
}
