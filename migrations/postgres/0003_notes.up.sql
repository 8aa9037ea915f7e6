-- What servers note beside the objects, without a revision and without history, such as the leases of etcd's clients.
--
-- Programs that do not know the table leave it alone.
CREATE TABLE notes (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
