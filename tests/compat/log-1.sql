-- A log of format 1, as `.dump` of SQLite shows it: four documents written, one replaced, one deleted.
BEGIN TRANSACTION;
CREATE TABLE documents(
    pk INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    title TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL);
INSERT INTO "documents" VALUES(2,'d2',2,2,1,'','{"number":2,"even":true,"topic":"t2","tags":["g2","all"]}','word57 word34 word173 word25 word15 word5 word12 word7 word38 word24 word70 word28 word7 word36 word32');
INSERT INTO "documents" VALUES(4,'long',4,4,2,'A title','{"kind":"long"}','First part. Second part.');
INSERT INTO "documents" VALUES(5,'d1',5,6,1,'','{"number":1,"even":false,"topic":"t1","tags":["g1","all"]}','word14 word8 word35 word16 word8 word97 word46 word88 word75 word40 word17 word11 word129 word12 word39');
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('format_version','1');
INSERT INTO "meta" VALUES('settings','{"dimensions":4,"fingerprint":"f","model":"m","hot_capacity":600,"bm25":{"k1":0.9,"b":0.4}}');
INSERT INTO "meta" VALUES('uid','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
CREATE TABLE operations(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, document_id TEXT NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    dead_first INTEGER NOT NULL, dead_passages INTEGER NOT NULL);
INSERT INTO "operations" VALUES(1,1795339666342,'d1',1,1,0,0);
INSERT INTO "operations" VALUES(2,1795339666342,'d2',2,1,0,0);
INSERT INTO "operations" VALUES(3,1795339666342,'d3',3,1,0,0);
INSERT INTO "operations" VALUES(4,1795339666353,'long',4,2,0,0);
INSERT INTO "operations" VALUES(5,1795339666353,'d1',6,1,1,1);
INSERT INTO "operations" VALUES(6,1795339666353,'d3',0,0,3,1);
CREATE TABLE passages(
    id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, tokens INTEGER NOT NULL, text TEXT, vector BLOB NOT NULL);
INSERT INTO "passages" VALUES(2,2,0,0,102,15,NULL,X'F3C8733CB9C05EBE964587BEE68270BF');
INSERT INTO "passages" VALUES(4,4,0,0,11,3,'First part.',X'7A551A3E258B2EBEEB7570BF897B833E');
INSERT INTO "passages" VALUES(5,4,1,12,24,3,'Second part.',X'D0831D3E85CA713E7F1748BF97750E3F');
INSERT INTO "passages" VALUES(6,5,0,0,103,15,NULL,X'33B3553F557FF03D73D1BCBEAE83C83E');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('documents',5);
INSERT INTO "sqlite_sequence" VALUES('passages',6);
INSERT INTO "sqlite_sequence" VALUES('operations',6);
COMMIT;
