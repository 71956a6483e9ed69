/* The closed arithmetic language of bounds and grids, parsed: see aot/expr.py for its grammar. */

typedef enum aot__op {
  AOT__OP_INT,
  AOT__OP_NAME,
  AOT__OP_NEG,
  AOT__OP_ADD,
  AOT__OP_SUB,
  AOT__OP_MUL,
  AOT__OP_DIV,
  AOT__OP_CDIV,
  AOT__OP_POWER,
  AOT__OP_MIN,
  AOT__OP_MAX
} aot__op;

typedef struct aot__expr {
  aot__op op;
  int64_t value;
  const char *name;
  struct aot__expr *args, *next; /* the operands, in a list */
} aot__expr;

enum { AOT__MAX_TOKENS = 200, AOT__MAX_NESTING = 50, AOT__LONGEST_TOKEN = 201 };

typedef struct aot__lexer {
  const char *text, *at; /* `at` is behind the current token */
  const char *token;     /* the current token, empty at the end */
  size_t length;
  int n_tokens, depth;
  aot__arena *arena;
  aot__text *fault; /* gets the first fault */
  bool failed, no_memory;
} aot__lexer;

static const struct {
  const char *name;
  aot__op op;
  int least, most;
} aot__functions[] = {{"cdiv", AOT__OP_CDIV, 2, 2},
                      {"next_power_of_2", AOT__OP_POWER, 1, 1},
                      {"min", AOT__OP_MIN, 2, AOT__MAX_TOKENS},
                      {"max", AOT__OP_MAX, 2, AOT__MAX_TOKENS}};

static bool aot__letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool aot__digit(char c) { return c >= '0' && c <= '9'; }

static aot__expr *aot__expr_fault(aot__lexer *lexer, const char *fault) {
  if (!lexer->failed) {
    aot__put(lexer->fault, "found ");
    if (*lexer->token) aot__put(lexer->fault, "'%.*s'", (int)(lexer->length > 40 ? 40 : lexer->length), lexer->token);
    else aot__put(lexer->fault, "the end");
    aot__put(lexer->fault, " at column %zu, wanted %s", (size_t)(lexer->token - lexer->text), fault);
  }
  lexer->failed = true;
  return NULL;
}

/* Step to the next token. */
static void aot__next(aot__lexer *lexer) {
  const char *at = lexer->at;
  bool known;
  while (*at == ' ' || (*at >= '\t' && *at <= '\r')) at++;
  lexer->token = at;
  if (aot__digit(*at)) {
    while (aot__digit(*at)) at++;
  } else if (aot__letter(*at) || (*at == '$' && aot__letter(at[1]))) {
    for (at++; aot__letter(*at) || aot__digit(*at);) at++;
  } else if (*at) {
    at += at[0] == '/' && at[1] == '/' ? 2 : 1;
  }
  lexer->length = (size_t)(at - lexer->token);
  lexer->at = at;
  known = aot__letter(*lexer->token) || aot__digit(*lexer->token) || strchr("-+*(),", *lexer->token) ||
          (strchr("$/", *lexer->token) && lexer->length > 1);
  if (*lexer->token && !known)
    aot__expr_fault(lexer, "a name, an integer, an operator (+ - * //) or a function");
  else if (*lexer->token && (lexer->n_tokens++ == AOT__MAX_TOKENS || lexer->length > AOT__LONGEST_TOKEN))
    aot__expr_fault(lexer, "at most 200 names, numbers and signs");
}

static bool aot__is(const aot__lexer *lexer, const char *token) {
  return strlen(token) == lexer->length && !memcmp(token, lexer->token, lexer->length);
}

static aot__expr *aot__node(aot__lexer *lexer, aot__op op, aot__expr *args) {
  aot__expr *node = (aot__expr *)aot__take(lexer->arena, 1, sizeof *node);
  if (!node) {
    lexer->failed = lexer->no_memory = true;
    return NULL;
  }
  node->op = op;
  node->args = args;
  return node;
}

static aot__expr *aot__parse_sum(aot__lexer *lexer);

static aot__expr *aot__parse_call(aot__lexer *lexer, size_t function) {
  aot__expr *args = NULL, **end = &args;
  int count = 0;
  do {
    aot__next(lexer);
    *end = aot__parse_sum(lexer);
    if (lexer->failed) return NULL;
    end = &(*end)->next;
    count++;
  } while (aot__is(lexer, ","));
  if (!aot__is(lexer, ")")) return aot__expr_fault(lexer, "')'");
  if (count < aot__functions[function].least || count > aot__functions[function].most)
    return aot__expr_fault(lexer, "another number of arguments before it");
  aot__next(lexer);
  return aot__node(lexer, aot__functions[function].op, args);
}

static aot__expr *aot__parse_atom(aot__lexer *lexer) {
  aot__expr *node;
  const char *token = lexer->token;
  size_t length = lexer->length, i;
  uint64_t value = 0;
  if (lexer->failed) return NULL;
  if (aot__digit(*token)) {
    for (i = 0; i < length; i++) {
      if (value > ((uint64_t)INT64_MAX - (uint64_t)(token[i] - '0')) / 10)
        return aot__expr_fault(lexer, "an integer below 2**63");
      value = value * 10 + (uint64_t)(token[i] - '0');
    }
    node = aot__node(lexer, AOT__OP_INT, NULL);
    if (node) node->value = (int64_t)value;
    aot__next(lexer);
    return node;
  }
  if (aot__is(lexer, "(")) {
    aot__next(lexer);
    node = aot__parse_sum(lexer);
    if (lexer->failed) return NULL;
    if (!aot__is(lexer, ")")) return aot__expr_fault(lexer, "')'");
    aot__next(lexer);
    return node;
  }
  if (!aot__letter(*token) && *token != '$') return aot__expr_fault(lexer, "a name, an integer or '('");
  aot__next(lexer);
  if (aot__is(lexer, "(")) {
    for (i = 0; i < AOT__COUNT(aot__functions); i++)
      if (strlen(aot__functions[i].name) == length && !memcmp(aot__functions[i].name, token, length))
        return aot__parse_call(lexer, i);
    return aot__expr_fault(lexer, "cdiv, next_power_of_2, min or max before it");
  }
  node = aot__node(lexer, AOT__OP_NAME, NULL);
  if (!node) return NULL;
  node->name = aot__copy(lexer->arena, token, length);
  if (!node->name) lexer->failed = lexer->no_memory = true;
  return node;
}

static aot__expr *aot__parse_unary(aot__lexer *lexer) {
  aot__expr *node;
  if (lexer->failed) return NULL;
  if (++lexer->depth > AOT__MAX_NESTING) return aot__expr_fault(lexer, "at most 50 levels of nesting");
  if (aot__is(lexer, "-")) {
    aot__next(lexer);
    node = aot__parse_unary(lexer);
    node = node ? aot__node(lexer, AOT__OP_NEG, node) : NULL;
  } else {
    node = aot__parse_atom(lexer);
  }
  lexer->depth--;
  return node;
}

static aot__expr *aot__parse_pairs(aot__lexer *lexer, const char *first, aot__op first_op, const char *second,
                                   aot__op second_op, aot__expr *(*operand)(aot__lexer *)) {
  aot__expr *left = operand(lexer);
  while (!lexer->failed && (aot__is(lexer, first) || aot__is(lexer, second))) {
    aot__op op = aot__is(lexer, first) ? first_op : second_op;
    aot__expr *right;
    aot__next(lexer);
    right = operand(lexer);
    if (lexer->failed) return NULL;
    left->next = right;
    left = aot__node(lexer, op, left);
  }
  return lexer->failed ? NULL : left;
}

static aot__expr *aot__parse_product(aot__lexer *lexer) {
  return aot__parse_pairs(lexer, "*", AOT__OP_MUL, "//", AOT__OP_DIV, aot__parse_unary);
}

static aot__expr *aot__parse_sum(aot__lexer *lexer) {
  return aot__parse_pairs(lexer, "+", AOT__OP_ADD, "-", AOT__OP_SUB, aot__parse_product);
}

/* Parse `text`. Return NULL with the error of a damaged bundle. */
static aot__expr *aot__parse_expr(const char *text, const char *where, aot__arena *arena, aot_error *error) {
  char fault[300];
  aot__text words = aot__text_of(fault, sizeof fault);
  aot__lexer lexer = {text, text, text, 0, 0, 0, arena, &words, false, false};
  aot__expr *expr;
  aot__next(&lexer);
  expr = aot__parse_sum(&lexer);
  if (!lexer.failed && *lexer.token) aot__expr_fault(&lexer, "an operator or the end");
  if (!lexer.failed) return expr;
  if (lexer.no_memory) return aot__no_memory(error), (aot__expr *)NULL;
  aot__fail(error, AOT_ERROR_BUNDLE, "%s: found expression '%.200s' in the bundle: %s; build it again", where, text,
            fault);
  return NULL;
}
