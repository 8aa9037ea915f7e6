package sqlviews

import (
	"fmt"

	"byre/apiserver/query"
)

// revisionFunction is the name of the function that functions of the past call.
const revisionFunction = "byre_revision"

// past returns the query of a table's objects at the moment $1, with the columns in their order. A query with conditions on the
// key reads only what they select, because PostgreSQL inlines it.
func (p *Postgres) past(t *Table, columns []query.Column) string {
	now := Postgres{Store: p.Store} // an index is of the current objects
	id := "(SELECT id FROM " + identifier(p.Store) + ".resources WHERE " + t.condition() + ")"
	revision := fmt.Sprintf("(SELECT %s.%s($1, %s))", identifier(p.Schema), revisionFunction, id)
	return fmt.Sprintf("SELECT %s\nFROM %s o %s", now.values(t, columns), p.at(id, revision), p.parsed("o"))
}

// at returns a subquery of the objects of a resource at a revision: those that were last written up to then, and what was replaced
// or deleted later.
func (p *Postgres) at(id, revision string) string {
	return fmt.Sprintf(`(
  SELECT c.namespace, c.name, c.revision, c.value FROM %[1]s.current_objects c
  WHERE c.resource_id = %[2]s AND c.revision <= %[3]s
  UNION ALL
  SELECT u.namespace, u.name, u.replaces, u.value FROM %[1]s.undo_log u
  WHERE u.resource_id = %[2]s AND u.replaces BETWEEN 1 AND %[3]s AND u.revision > %[3]s
)`, identifier(p.Store), id, revision)
}

// pastDialect returns PostgreSQL's, with the objects of the moment $1. OFFSET 0 has the revision found once a resource, and the
// function is asked of a resource that the query selects only: the history of others may not reach back.
func (p *Postgres) pastDialect() *dialect {
	d := p.dialect()
	d.objects = func(o, t, condition string) string {
		q, revision := "q"+o, "r"+o+".revision"
		return fmt.Sprintf("%s\n  CROSS JOIN LATERAL (SELECT %s.%s($1, CASE WHEN %s.column2 IS NOT NULL THEN %s.id END) AS revision OFFSET 0) r%s\n  JOIN LATERAL %s %s ON true%s\n  %s",
			tableOf(identifier(p.Store), t, q), identifier(p.Schema), revisionFunction, t, q, o, p.at(q+".id", revision), o, condition, p.parsed(o))
	}
	return d
}

// revisionFunction returns the statement that makes the function of this name: the revision of a moment, as
// sqlstore.Driver.RevisionAt finds it. It is NULL for NULL, and an error if the history of a resource does not reach back to
// the moment.
func (s *Schema) revisionFunction() string {
	store := identifier(s.db.store)
	return fmt.Sprintf("CREATE OR REPLACE FUNCTION %s.%s(moment timestamptz, id_of integer) RETURNS bigint LANGUAGE plpgsql STABLE AS %s;\n",
		identifier(s.Name), revisionFunction, literal(fmt.Sprintf(`
DECLARE
  found_revision bigint;
  earliest bigint;
  earliest_time timestamptz;
  resource_name text;
BEGIN
  IF moment IS NULL THEN
    RETURN NULL;
  END IF;
  WITH RECURSIVE search(low, high) AS (
      SELECT 0::bigint, coalesce((SELECT u.revision + 1 FROM %[1]s.undo_log u ORDER BY u.revision DESC LIMIT 1), 0)
    UNION ALL
      SELECT CASE WHEN middle.time <= moment THEN middle.revision ELSE s.low END,
             CASE WHEN middle.time <= moment THEN s.high ELSE (s.low + s.high) / 2 END
      FROM search s, LATERAL (SELECT u.revision, u.time FROM %[1]s.undo_log u
                              WHERE u.revision >= (s.low + s.high) / 2 AND s.low + 1 < s.high
                              ORDER BY u.revision LIMIT 1) middle
  )
  SELECT max(low) INTO found_revision FROM search;
  SELECT r.compacted, r.resource INTO earliest, resource_name FROM %[1]s.resources r WHERE r.id = id_of;
  IF earliest > found_revision THEN
    SELECT min(u.time) INTO earliest_time FROM %[1]s.undo_log u WHERE u.resource_id = id_of;
    RAISE EXCEPTION 'the history of %% does not reach back to %%: the earliest moment is revision %%, or %%',
      resource_name, moment, earliest, coalesce(earliest_time::text, 'that of the next change') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN found_revision;
END
`, store)))
}
