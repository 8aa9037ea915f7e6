package sqlite

// Lists. The arguments are ?1 group, ?2 resource, ?3 owner, ?4 namespace, ?5 the name of the
// position after which the list begins, ?6 the only name to list (empty for all), ?7
// revision, ?8 limit (-1 for none), ?9 whether to return values. A list is of a resource, a
// namespace, or one object.
const (
	listResource = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6)
ORDER BY namespace, name LIMIT ?8`

	listNamespace = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6)
ORDER BY namespace, name LIMIT ?8`

	listObject = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name = ?6 AND name > ?5
ORDER BY namespace, name LIMIT ?8`

	countResource = `
SELECT count(*) FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6)`

	countNamespace = `
SELECT count(*) FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6)`
)

// Lists at a revision: the objects that were last written up to it, and the undo rows of objects
// that were replaced or deleted after it. These undo rows come from the whole history of the objects
// in the range (At), or from the changes of the resource after the revision if these are few (Since):
// of a list that goes on for minutes they are few, however long the history is. ?10 is whether to return
// objects that were not replaced since.
const (
	listResourceAt = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6) AND revision <= ?7 AND ?10
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, form, expires,
       CASE WHEN ?9 THEN value END, CASE WHEN ?9 THEN record_sum END
FROM undo_log INDEXED BY undo_log_key
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6) AND replaces BETWEEN 1 AND ?7 AND revision > ?7
ORDER BY namespace, name LIMIT ?8`

	listNamespaceAt = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6) AND revision <= ?7 AND ?10
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, form, expires,
       CASE WHEN ?9 THEN value END, CASE WHEN ?9 THEN record_sum END
FROM undo_log INDEXED BY undo_log_key
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6) AND replaces BETWEEN 1 AND ?7 AND revision > ?7
ORDER BY namespace, name LIMIT ?8`

	listObjectAt = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name = ?6 AND name > ?5 AND revision <= ?7 AND ?10
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, form, expires,
       CASE WHEN ?9 THEN value END, CASE WHEN ?9 THEN record_sum END
FROM undo_log INDEXED BY undo_log_key
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name = ?6 AND name > ?5 AND replaces BETWEEN 1 AND ?7 AND revision > ?7
ORDER BY namespace, name LIMIT ?8`

	listResourceSince = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6) AND revision <= ?7 AND ?10
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, form, expires,
       CASE WHEN ?9 THEN value END, CASE WHEN ?9 THEN record_sum END
FROM undo_log INDEXED BY undo_log_resource
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6) AND replaces BETWEEN 1 AND ?7 AND revision > ?7
ORDER BY namespace, name LIMIT ?8`

	listNamespaceSince = `
SELECT namespace, name, uid, created_revision, revision, form, expires,
       CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6) AND revision <= ?7 AND ?10
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, form, expires,
       CASE WHEN ?9 THEN value END, CASE WHEN ?9 THEN record_sum END
FROM undo_log INDEXED BY undo_log_resource
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6) AND replaces BETWEEN 1 AND ?7 AND revision > ?7
ORDER BY namespace, name LIMIT ?8`

	// hasManySince tells whether there are more than ?5 changes of the resource after ?4.
	hasManySince = `
SELECT EXISTS (
  SELECT 1 FROM undo_log INDEXED BY undo_log_resource
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3) AND revision > ?4 LIMIT 1 OFFSET ?5
)`

	// countResourceAt counts the objects that exist now and whose create revision, the rowid, is not
	// later: the index alone counts them. It adds those that existed at the revision and were deleted
	// later.
	countResourceAt = `
SELECT (
  SELECT count(*) FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
    AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6) AND created_revision <= ?7
) + (
  SELECT count(*) FROM undo_log INDEXED BY undo_log_resource
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
    AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6) AND revision > ?7 AND op = 'delete' AND created_revision <= ?7
)`

	countNamespaceAt = `
SELECT (
  SELECT count(*) FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
    AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6) AND created_revision <= ?7
) + (
  SELECT count(*) FROM undo_log INDEXED BY undo_log_resource
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
    AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6) AND revision > ?7 AND op = 'delete' AND created_revision <= ?7
)`
)
